"""A user's own rule, value by value: what it says is fixed, the rest is the optimiser's."""

from __future__ import annotations

from gcpass._errors import OptionError
from gcpass._explain import candidates
from gcpass._problem import Problem, Rule
from gcpass.policies._policy import Policy
from gcpass.policies._regions import own_constraint, restricted

_RULES = {"save": Rule.KEEP, "recompute": Rule.NEVER_KEEP, None: None}


def ruled(problem: Problem, policy: Policy) -> tuple[Problem, tuple[str, ...]]:
    """The problem with a policy's rule on each value that could be kept, and notes for the user.

    Raises:
        OptionError: the rule returns something else than ``"save"``, ``"recompute"`` or None.
    """
    assert policy.rule is not None
    rules: dict[int, Rule] = {}
    ignored: list[str] = []
    for op, row in candidates(problem):
        said = policy.rule(row)
        if not (said is None or isinstance(said, str)) or said not in _RULES:
            raise OptionError(
                f"policy {policy.name} returned {said!r} for {row.op} ({row.target}): it must "
                "return 'save', 'recompute' or None"
            )
        constraint, rule = own_constraint(problem, op), _RULES[said]
        if constraint is None:
            rules |= {op: rule} if rule else {}
        elif rule and _contradict(rule, constraint.rule):
            ignored.append(f"{said!r} for {row.op} ({row.target}): {constraint.reason}")
    more = f", and {len(ignored) - 1} more" if len(ignored) > 1 else ""
    notes = (f"policy {policy.name} was not followed: {ignored[0]}{more}",) if ignored else ()
    return restricted(problem, rules, f"policy {policy.name}"), notes


def _contradict(said: Rule, constraint: Rule) -> bool:
    return (said is Rule.KEEP) == (constraint is Rule.NEVER_KEEP)

"""A user's own rule, value by value: what it says is fixed, the rest is the optimiser's."""

from __future__ import annotations

from collections.abc import Collection

from gcpass._errors import OptionError
from gcpass._explain import candidates
from gcpass._problem import Problem, Rule
from gcpass.policies._parts import Restricted, notes_of, unheeded
from gcpass.policies._policy import Policy
from gcpass.policies._regions import restricted

_RULES = {"save": Rule.KEEP, "recompute": Rule.NEVER_KEEP, None: None}


def ruled(
    problem: Problem,
    policy: Policy,
    among: Collection[int] | None = None,
    speaker: str = "",
) -> Restricted:
    """The problem with a policy's rule on each value that could be kept, and notes for the user.

    Args:
        problem: the problem.
        policy: it has a rule.
        among: the ops whose values are ruled; None for all.
        speaker: whose policy it is, for reasons and notes.

    Raises:
        OptionError: the rule returns something else than ``"save"``, ``"recompute"`` or None.
    """
    assert policy.rule is not None
    name = f"policy {policy.name}{speaker and ' of '}{speaker}"
    rules: dict[int, Rule] = {}
    for op, row in candidates(problem):
        if among is not None and problem.maker(op) not in among:
            continue
        said = policy.rule(row)
        if not (said is None or isinstance(said, str)) or said not in _RULES:
            raise OptionError(
                f"{name} returned {said!r} for {row.op} ({row.target}): it must "
                "return 'save', 'recompute' or None"
            )
        rule = _RULES[said]
        rules |= {op: rule} if rule else {}
    notes = notes_of(name, unheeded(problem, rules))
    return restricted(problem, rules, name), notes

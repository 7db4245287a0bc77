"""All that a user says of values, in the order of its weight, as rules on a problem.

What comes first holds, and what it leaves open is the next one's:

1. the graph's own rules: what must not run twice, and the user's `MUST_SAVE`, `MUST_RECOMPUTE`;
2. the policy of a region marked in the code;
3. ``rules`` by module path;
4. ``policy``, where it is a function of a row;
5. the memory budget of a region marked in the code.

The rest is the optimiser's, or a manual policy's.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcpass._problem import Problem
from gcpass.policies._marked import Region, under_budgets, under_policies
from gcpass.policies._modules import ModuleRules, by_module
from gcpass.policies._parts import Restricted
from gcpass.policies._policy import Policy
from gcpass.policies._rules import ruled


def under_rules(
    problem: Problem,
    regions: Sequence[Region] = (),
    rules: ModuleRules = (),
    policy: Policy | None = None,
    on_infeasible: str = "error",
) -> Restricted:
    """The problem with all rules that are not its own, and notes for the user.

    Args:
        problem: the problem.
        regions: marked in the user's code.
        rules: by module path.
        policy: of the whole graph.
        on_infeasible: what to do where a region's budget cannot be kept: ``"error"`` or ``"best"``.

    Raises:
        InfeasibleBudget: a region's budget cannot be kept, and ``on_infeasible`` is ``"error"``.
        OptionError: a policy's rule says what it must not.
    """
    steps = [lambda p: under_policies(p, regions), lambda p: by_module(p, rules)]
    if policy is not None and policy.rule is not None:
        steps.append(lambda p: ruled(p, policy))
    steps.append(lambda p: under_budgets(p, regions, on_infeasible))
    notes: tuple[str, ...] = ()
    for step in steps:
        problem, more = step(problem)
        notes += more
    return problem, notes

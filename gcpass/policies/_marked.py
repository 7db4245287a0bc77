"""Regions marked in the user's code, each with a policy or a memory budget of its own.

The budget of a region bounds the bytes that are saved of what is made in it. What to save is a
minimum cut (`gcpass._solvers._within`); whatever it leaves out becomes a rule: not kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gcpass._budget import NO_BUDGET, Budget
from gcpass._errors import InfeasibleBudget
from gcpass._problem import Bound, Problem, Rule
from gcpass._solvers import fastest, made_in, saved_nbytes, within
from gcpass._units import format_bytes
from gcpass.policies._parts import SAID, Part, Restricted, leaving, parted
from gcpass.policies._policy import Policy
from gcpass.policies._regions import restricted
from gcpass.policies._rules import ruled


@dataclass(frozen=True)
class Region:
    """A region and what its marker says.

    Attributes:
        name: who says so, and where, for reasons and notes.
        ops: what runs in it, but not in a region inside it.
        budget: the bound on the bytes saved of it; a fraction is of what the fastest plan saves.
        policy: ``"save"``, ``"recompute"``, a policy that is asked for these ops alone, or None.
        lenient: whether the fewest bytes will do where the budget is below them.
    """

    name: str
    ops: frozenset[int]
    budget: Budget = NO_BUDGET
    policy: Policy | str | None = None
    lenient: bool = False


def under_policies(problem: Problem, regions: Sequence[Region]) -> Restricted:
    """The problem with the regions' policies as rules, and notes for the user.

    Raises:
        OptionError: a policy's rule says what it must not.
    """
    parts = [_part(region) for region in regions if region.policy is not None]
    problem, notes = parted(problem, [part for part in parts if part.said in SAID])
    read_outside = leaving(problem, parts)
    for region in regions:
        if not isinstance(region.policy, Policy):
            continue
        if region.policy.rule is not None:
            problem, more = ruled(problem, region.policy, region.ops, speaker=region.name)
            notes += more
        else:
            problem = _chosen(problem, region, region.policy, read_outside)
    return problem, notes


def _part(region: Region) -> Part:
    said = region.policy if isinstance(region.policy, str) else ""
    return Part(said, region.name, region.ops, region.ops)


def _chosen(
    problem: Problem, region: Region, policy: Policy, read_outside: Collection[int]
) -> Problem:
    """What a manual policy would keep of the whole graph, as rules on one region."""
    assert policy.choose is not None
    kept = policy.choose(problem)
    own = made_in(problem, region.ops)
    rules = {op: Rule.KEEP for op in own if op in kept and problem.wanted[op]} | {
        op: Rule.NEVER_KEEP
        for op in own
        if op not in kept and problem.kept_storage[op] not in read_outside
    }
    return restricted(problem, rules, f"policy {policy.name} of {region.name}")


def under_budgets(problem: Problem, regions: Sequence[Region], on_infeasible: str) -> Restricted:
    """The problem with rules that keep the regions' budgets, and notes for the user.

    Raises:
        InfeasibleBudget: a region's budget is below the fewest bytes that can be saved of it, and
            ``on_infeasible`` is ``"error"``.
    """
    budgeted = [region for region in regions if region.budget != NO_BUDGET]
    notes: list[str] = []
    wanted = fastest(problem) if budgeted else frozenset()
    for region in budgeted:
        own = made_in(problem, region.ops)
        nbytes = region.budget.nbytes
        if nbytes is None:
            assert region.budget.fraction is not None
            nbytes = int(region.budget.fraction * saved_nbytes(problem, wanted.intersection(own)))
        kept = within(problem, region.ops, nbytes, wanted)
        fewest = saved_nbytes(problem, kept)
        if fewest > nbytes and not region.lenient:
            message = _infeasible(region, nbytes, fewest)
            if on_infeasible == "error":
                raise InfeasibleBudget(message, budget_bytes=nbytes, floor_bytes=fewest)
            warnings.warn(f"gcpass: {message} Going on with as little.", stacklevel=2)
            notes.append(message)
        out = {op: Rule.NEVER_KEEP for op in own if op not in kept}
        problem = restricted(problem, out, f"left out by the budget of {region.name}")
        bound = Bound(region.name, region.ops, nbytes)
        problem = replace(problem, bounds=(*problem.bounds, bound))
    return problem, tuple(notes)


def _infeasible(region: Region, nbytes: int, fewest: int) -> str:
    return (
        f"{region.name} has memory_budget={format_bytes(nbytes)}, which is below the fewest bytes "
        f"that can be saved of what is made in it, {format_bytes(fewest)}: give it at least "
        f"{fewest} bytes, or let more of it be recomputed."
    )

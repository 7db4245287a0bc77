"""What checkpointing some regions of the forward keeps.

A checkpointed region runs again from what it reads, so

- inside a region nothing is kept but what another region reads,
- what a region reads from outside is kept,
- of the rest, the fewest bytes are kept from which fused work alone brings back what the backward
  reads: what a compiler's own partitioner does where nobody says otherwise.

That is a minimum cut of a problem with these rules added to its own, which come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gcpass._problem import Constraint, Kernel, Phase, Problem, Rule
from gcpass._solvers._cut import CutNetwork


def kept_around(problem: Problem, regions: Sequence[Collection[int]]) -> frozenset[int]:
    """The ops to keep if each region is checkpointed."""
    region_of = {op: i for i, ops in enumerate(regions) for op in ops}
    read = {
        holder
        for op, region in region_of.items()
        for reads in problem.ops[op].inputs
        for holder in holders(problem, reads)
        if region_of.get(holder) != region
    }
    return kept_under(problem, keep=read, recompute=region_of.keys() - read)


def kept_under(
    problem: Problem, keep: Collection[int], recompute: Collection[int]
) -> frozenset[int]:
    """The ops to keep if ``keep`` are and ``recompute`` are not; the rest by a cut."""
    held = {holder for output in problem.outputs for holder in holders(problem, output)}
    again = set(recompute) - held  # what the caller holds is there for nothing
    rules = dict.fromkeys(again, Rule.NEVER_KEEP) | dict.fromkeys(keep, Rule.KEEP)
    rest = _as_a_compiler_does(problem, rules)
    ruled = restricted(problem, rest | rules, "the policy's rule")
    return CutNetwork(ruled, ruled.forward_range, ()).smallest().kept


def restricted(problem: Problem, rules: dict[int, Rule], reason: str) -> Problem:
    """The problem with rules on ops that have none of their own, nor are items of one that does.

    Preferences that contradict a rule are dropped: whoever rules was more explicit.
    """
    ops = list(problem.ops)
    for op, rule in rules.items():
        if own_constraint(problem, op) is None:
            ops[op] = replace(ops[op], constraint=Constraint(rule, reason))
        items = (problem.storages[s].holder for s in problem.produced[op])
        for preferring in {op, *items} - {None}:
            preference = ops[preferring].preference
            if preference is not None and contradict(rule, preference.rule):
                ops[preferring] = replace(ops[preferring], preference=None)
    return replace(problem, ops=tuple(ops))


def contradict(rule: Rule, other: Rule) -> bool:
    """Whether one of two rules wants the value kept, and the other does not."""
    return (rule is Rule.NEVER_KEEP) != (other is Rule.NEVER_KEEP)


def own_constraint(problem: Problem, op: int) -> Constraint | None:
    """What the graph itself says of an op: of an item, what it says of the op that makes it."""
    constraint = problem.ops[op].constraint
    if constraint is not None or op not in problem.kept_storage:
        return constraint
    maker = problem.ops[problem.maker(op)]
    return maker.constraint if maker.obeys(Rule.NEVER_RECOMPUTE) else None


def _as_a_compiler_does(problem: Problem, ruled: Collection[int]) -> dict[int, Rule]:
    """Recompute nothing that is not fused into its reader; where no part of a value has a rule."""
    return {
        op: Rule.NEVER_RECOMPUTE
        for op in problem.forward_range
        if problem.produced[op]
        and problem.ops[op].phase is Phase.FORWARD
        and (problem.ops[op].kernel is not Kernel.POINTWISE or _gets_a_buffer(problem, op))
        and not any(
            holder in ruled or (holder is not None and problem.ops[holder].obeys(Rule.NEVER_KEEP))
            for holder in (problem.storages[s].holder for s in problem.produced[op])
        )
    }


def _gets_a_buffer(problem: Problem, op: int) -> bool:
    """Whether an op of the backward reads the value, or a view of it, and does not fuse it."""
    stack = [op]
    while stack:
        for reader in problem.readers[stack.pop()]:
            if problem.is_view(reader):
                stack.append(reader)
            elif reader in problem.backward_range and not problem.ops[reader].fuses_inputs:
                return True
    return False


def holders(problem: Problem, op: int) -> Iterator[int]:
    """The ops that stand for the storages of a value of the forward, if it can be kept."""
    for storage in problem.ops[op].storages:
        holder = problem.storages[storage].holder
        if holder is not None and holder in problem.kept_storage:
            yield holder

"""A problem corrected by the count of one of its plans.

Where the code that Inductor wrote holds more than the planner thought, it does so for reasons that
lie in the code: a loop is not fused, a layout is converted. So what the code held at an op of the
backward beyond the plan's own moment there is taken for a workspace of that op, and another plan is
made knowing of it. Some of that is of the one plan and not of the other, which then holds less than
it might.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gcpass._evaluate import Evaluator
from gcpass._problem import Problem

Moments = Iterable[tuple[tuple[str, ...], int]]  # names of ops, and the bytes alive as they run


def beyond(evaluator: Evaluator, kept: frozenset[int], counted: Moments) -> dict[int, int]:
    """For ops of the backward, the bytes counted beyond those planned; none where no more were.

    Args:
        evaluator: of the problem.
        kept: what the plan keeps.
        counted: the moments of its backward.
    """
    problem = evaluator.problem
    planned = {m.op: m.nbytes for m in evaluator.trace(kept).moments if m.in_backward}
    place = {problem.ops[op].name: op for op in problem.backward_range}
    found: dict[int, int] = {}
    for names, nbytes in counted:
        ops = [place[name] for name in names if name in place and name in planned]
        if ops:
            op = max(ops)
            more = nbytes - planned[problem.ops[op].name]
            found[op] = max(found.get(op, 0), more)
    return {op: nbytes for op, nbytes in found.items() if nbytes > 0}


def corrected(problem: Problem, beyond: Mapping[int, int]) -> Problem:
    """The problem with what was counted beyond a plan as workspaces."""
    ops = (
        replace(op, workspace_nbytes=op.workspace_nbytes + beyond.get(index, 0))
        for index, op in enumerate(problem.ops)
    )
    return replace(problem, ops=tuple(ops))

"""Which values the peak of a plan's step holds, and which it would hold if they were kept.

A kept value is alive from the op of the forward that makes it to the last that reads it in the
backward; a recomputed one only from its recomputation on. What gets no buffer is read where the
ops that compute it on the way run, and a view where its own readers run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gcpass._evaluate import Evaluator, Run
from gcpass._problem import Problem


class Lifetimes:
    """The lifetimes of one plan's values, and what the plan's peak holds of them.

    Args:
        evaluator: of the problem.
        run: of the plan.
        further: for each op that runs more than twice, its further runs (`gcpass._repeat`): if its
            value were kept, they would not be.
    """

    def __init__(
        self, evaluator: Evaluator, run: Run, further: Mapping[int, Sequence[int]]
    ) -> None:
        self._further = further
        problem = evaluator.problem
        moment = run.moments[run.peak]
        self._in_backward = moment.in_backward
        steps = evaluator.backward.steps
        if moment.in_backward:
            where = {op: place for place, (op, t) in enumerate(run.schedule) if t < 0}
            self._without_buffer = run.fused_backward
            read = [-1] * len(problem.ops)
            for place, (_, t) in enumerate(run.schedule):
                for need in steps[t].needs if t >= 0 else ():
                    read[need] = place
        else:
            where = {op: place for place, op in enumerate(run.forward)}
            self._without_buffer = run.fused_forward
            read = [-1] * len(problem.ops)
        self._where = where
        self._last = _last_reads(problem, where, self._without_buffer, read)
        runs = [op for op, _ in run.schedule] if moment.in_backward else run.forward
        names = [op.name for op in problem.ops] + ["end of backward"]
        self._peak_op = names.index(moment.op)
        # torch's own order may lack a step that nothing reads: the next one stands for it.
        self._peak = next(
            place
            for place, op in enumerate(runs)
            if op == self._peak_op or (self._peak_op not in runs and op > self._peak_op)
        )

    def kept_at_peak(self, op: int) -> bool:
        """Whether the value of ``op`` is alive at the peak if it is kept."""
        if not self._in_backward:
            return op <= self._peak_op
        runs = (op, *self._further.get(op, ()))
        return any(self._last[run] >= self._peak for run in runs)

    def now_at_peak(self, op: int, holder: int) -> bool:
        """Whether what ``op`` makes and ``holder`` stands for is at the peak, though not kept."""
        again = ((run, run) for run in self._further.get(op, ()))
        for run, held in ((op, holder), *again):
            place = self._where.get(run)
            if place is None or run in self._without_buffer:
                continue
            if place <= self._peak <= max(place, self._last[held]):
                return True
        return False


def _last_reads(
    problem: Problem, where: Mapping[int, int], without_buffer: Collection[int], last: list[int]
) -> list[int]:
    """For each op, the last place at which its value is read in one pass; -1 if at none.

    Args:
        problem: of the plan.
        where: what runs of the forward range, and its place in the pass.
        without_buffer: ops that are computed where they are read.
        last: the last place that reads each op for other than these; written over.
    """
    for op in sorted(where, reverse=True):
        passes_on = op in without_buffer or problem.is_view(op)
        place = last[op] if passes_on else where[op]
        for read in problem.ops[op].inputs:
            last[read] = max(last[read], place)
    return last

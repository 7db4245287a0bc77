"""Telling identical segments apart from different ones, so that each kind is solved once.

Two segments are alike if their ops and the stretches of backward that belong to them agree in all
that the cuts and the evaluation look at, with every reference counted from the segment's own
start. References to values that are read across much of the forward or of the backward (a mask, a
table of positions) are counted absolutely, for they are the same value for every layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gcpass._evaluate import Evaluator
from gcpass._problem import Problem

_FAR = 4  # a value read over more than 1/_FAR of a pass is referred to absolutely


class Signatures:
    """Interned descriptions of the ops of the forward range and the steps of the backward."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._problem = evaluator.problem
        self._steps = evaluator.backward.steps
        self._far = self._far_values(evaluator.backward.wanted_by)
        self._ids: dict[object, int] = {}
        start = self._problem.forward_range.start
        self._start = start
        self._ops = [self._intern(self._op(op)) for op in self._problem.forward_range]
        self._step_ids = self._describe_steps()
        never = len(self._steps)
        wanted_by = evaluator.backward.wanted_by
        self._first = [wanted_by.get(op, (never,))[0] for op in self._problem.forward_range]
        self._last = [wanted_by.get(op, (-1,))[-1] for op in self._problem.forward_range]

    def window(self, ops: range, given: frozenset[int]) -> tuple[int, int] | None:
        """First and last step that read an op of ``ops`` other than the given ones."""
        first = self._first[ops.start - self._start : ops.stop - self._start]
        last = self._last[ops.start - self._start : ops.stop - self._start]
        for op in given:
            first[op - ops.start], last[op - ops.start] = len(self._steps), -1
        low, high = min(first), max(last)
        return (low, high) if low <= high else None

    def key(self, ops: range, given: frozenset[int], window: tuple[int, int] | None) -> object:
        """Equal for segments alike."""
        mine = tuple(self._ops[ops.start - self._start : ops.stop - self._start])
        marks = tuple(sorted(op - ops.start for op in given))
        if window is None:
            return mine, marks
        low, high = window
        anchor = next((n for n in self._steps[low].needs if n >= self._start), 0) - ops.start
        return mine, marks, anchor, tuple(self._step_ids[low : high + 1])

    def _intern(self, description: object) -> int:
        return self._ids.setdefault(description, len(self._ids))

    def _far_values(self, wanted_by: Mapping[int, Sequence[int]]) -> frozenset[int]:
        problem: Problem = self._problem
        span = max(len(problem.forward_range) // _FAR, 1)
        late_span = max(len(self._steps) // _FAR, 1)
        in_forward = {
            op
            for op in problem.forward_range
            if any(
                span < r - op and r in problem.forward_range and problem.wanted[r]
                for r in problem.readers[op]
            )
        }
        in_backward = {op for op, steps in wanted_by.items() if steps[-1] - steps[0] > late_span}
        return frozenset(in_forward | in_backward)

    def _reference(self, op: int, origin: int) -> object:
        if op < self._problem.forward_range.start:
            return "input"
        return ("far", op) if op in self._far else op - origin

    def _op(self, index: int) -> object:
        problem = self._problem
        op = problem.ops[index]
        own = tuple(
            (
                problem.storages[s].nbytes,
                (problem.storages[s].holder or index) - index,
                s in problem.output_storages,
            )
            for s in problem.produced[index]
        )
        backward = problem.backward_range.start
        if not problem.wanted[index]:
            return op.phase, op.kernel, own, op.workspace_nbytes, len(op.inputs)
        return (
            tuple(self._reference(r, index) for r in op.inputs),
            tuple(self._reference(problem.storages[s].producer, index) for s in op.storages),
            own,
            op.phase,
            op.kernel,
            op.constraint and op.constraint.rule,
            problem.recompute_picoseconds(index),
            problem.keep_picoseconds(index),
            op.workspace_nbytes,
            index in problem.kept_storage,
            bool(problem.readers[index]) and problem.readers[index][-1] >= backward,
            index if index in self._far else None,
        )

    def _describe_steps(self) -> list[int]:
        ids, previous = [], self._problem.forward_range.start
        for step, after in zip(self._steps, (*self._steps[1:], self._steps[-1]), strict=True):
            ids.append(
                self._intern(
                    (
                        tuple(self._reference(n, previous) for n in step.needs),
                        after.base_before - step.base_before,
                        step.base_during - step.base_before,
                        step.reusable_nbytes,
                    )
                )
            )
            near = [n for n in step.needs if n >= self._start and n not in self._far]
            previous = near[0] if near else previous
        return ids

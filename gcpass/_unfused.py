"""The sums of `gcpass._sweep` where nothing is fused, on arrays.

Without fusion each op has its own buffer, and a value dies after its last reader: what is alive at
every moment is a running sum of births and deaths. The figures are the same (a property test);
this is what makes thousands of evaluations of a large graph affordable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from gcpass._backward import Backward
from gcpass._problem import Problem
from gcpass._sweep import Inside, Moment, Schedule, late_moment

_Array = np.ndarray


class Unfused:
    """What `gcpass._sweep.Fused` does, for one problem with ``codegen="eager"``."""

    def __init__(self, problem: Problem, backward: Backward) -> None:
        self._problem, self._backward = problem, backward
        ops, steps = problem.ops, backward.steps
        self._nbytes = _integers(s.nbytes for s in problem.storages)
        self._producer = _integers(s.producer for s in problem.storages)
        self._workspace = _integers(op.workspace_nbytes for op in ops)
        self._lives_in = _Rows(op.storages for op in ops)
        self._produced = _Rows(problem.produced)
        self._read = _Rows({s for read in op.inputs for s in ops[read].storages} for op in ops)
        self._touched = _Rows(
            {s for read in (index, *op.inputs) for s in ops[read].storages}
            for index, op in enumerate(ops)
        )
        self._needed = _Rows({s for need in x.needs for s in ops[need].storages} for x in steps)
        self._base_before = _integers(step.base_before for step in steps)
        self._base_during = _integers(step.base_during for step in steps)
        self._is_output = np.zeros(len(self._nbytes), bool)
        self._is_output[_integers(problem.output_storages)] = True
        self._born = self._produced.sums(self._nbytes)
        self._born_late = self._produced.sums(np.where(self._is_output, 0, self._nbytes))

    def forward(self, order: Sequence[int], kept: Collection[int]) -> tuple[Moment, Inside]:
        """`Fused.forward`; no storage is part of another."""
        run = _integers(order)
        if not len(run):
            return Moment("", False, 0, 0, 0, 0, 0, 0), {}
        last = np.full(len(self._nbytes), -1)
        self._touched.mark(last, run, np.arange(len(run)))
        held = self._is_output.copy()
        held[self._lives_in.of(_integers(kept))[0]] = True
        here = np.zeros(len(self._workspace), bool)
        here[run] = True
        mine = (last >= 0) & ~held & here[self._producer]
        born = self._born[run]
        alive = _before(born - self._dying(last, mine, len(run)))
        during = alive + born + self._workspace[run]
        best = int(during.argmax())
        made, _ = self._produced.of(run[: best + 1])
        returned = int(self._nbytes[made[self._is_output[made]]].sum())
        kept_nbytes = int(self._nbytes[made[held[made]]].sum()) - returned
        name, total = self._problem.ops[run[best]].name, int(during[best])
        rest = total - kept_nbytes - returned
        return Moment(name, False, total, kept_nbytes, 0, 0, returned, rest), {}

    def used(self, schedule: Schedule, kept: Collection[int]) -> frozenset[int]:
        """`Fused.used`."""
        run, t, late = _columns(schedule)
        read = np.zeros(len(self._nbytes), bool)
        read[self._read.of(run[late])[0]] = True
        read[self._needed.of(t[~late])[0]] = True
        places = self._problem.kept_storage
        return frozenset(k for k in kept if k in places and read[places[k]])

    def backward(
        self, schedule: Schedule, kept: Collection[int], ops: range, inside: Inside
    ) -> Moment:
        """`Fused.backward`."""
        run, t, late = _columns(schedule)
        last = self._last_readers(run, t, late)
        kept_alive = np.zeros(len(last), bool)
        kept_alive[self._lives_in.of(_integers(k for k in kept if k in ops))[0]] = True
        kept_alive &= (last >= 0) & (self._producer >= ops.start) & (self._producer < ops.stop)
        made, makers = self._produced.of(run[late])
        again = np.zeros(len(last), bool)
        again[made] = True
        again &= (last >= 0) & ~kept_alive

        # All that a recomputed op makes is alive while it runs; what is kept already, not after.
        births, workspace, staying = np.zeros((3, len(run)), np.int64)
        births[late], workspace[late] = self._born_late[run[late]], self._workspace[run[late]]
        kept_on = np.where(again[made], self._nbytes[made], 0)
        np.add.at(staying, np.flatnonzero(late)[makers], kept_on)
        kept_nbytes = self._nbytes[kept_alive].sum() - _before(
            self._dying(last, kept_alive, len(run))
        )
        new_nbytes = _before(staying - self._dying(last, again, len(run)))
        alive = kept_nbytes + new_nbytes

        stops = np.flatnonzero(~late)
        coming = t[stops[np.searchsorted(stops, np.arange(len(run)))]]
        recomputing = self._base_before[coming] + births + workspace
        totals = alive + np.where(late, recomputing, self._base_during[coming])
        place = int(totals.argmax())
        total, op = int(totals[place]), int(run[place])
        step = int(coming[place]) - int(late[place])  # the last that has begun
        new = int(new_nbytes[place] + births[place])
        complete = len(stops) == t[stops].max() - t[stops].min() + 1
        for here, after in () if complete else pairwise(stops):  # between: reads nothing of ``ops``
            if t[after] > t[here] + 1:
                fullest = self._backward.fullest_between(int(t[here]) + 1, int(t[after]) - 1)
                if self._base_during[fullest] + alive[here + 1] > total:
                    total = int(self._base_during[fullest] + alive[here + 1])
                    place, step, op = here + 1, fullest, self._backward.steps[fullest].op
                    new = int(new_nbytes[place])
        kept_then = int(kept_nbytes[place])
        return late_moment(self._problem, self._backward, total, kept_then, new, op, step)

    def _last_readers(self, run: _Array, t: _Array, late: _Array) -> _Array:
        """For each storage, the last position that reads or makes it; -1: none, or in the base."""
        positions = np.arange(len(run))
        last, by_steps = np.full((2, len(self._nbytes)), -1)
        self._touched.mark(last, run[late], positions[late])
        self._needed.mark(by_steps, t[~late], positions[~late])
        return np.where(self._is_output, -1, np.maximum(last, by_steps))

    def _dying(self, last: _Array, mine: _Array, count: int) -> _Array:
        """Bytes of the storages ``mine`` whose last reader is at each of ``count`` positions."""
        return np.bincount(last[mine], self._nbytes[mine], count).astype(np.int64)


class _Rows:
    """Rows of whole numbers of different lengths, one after the other."""

    def __init__(self, rows: Iterable[Collection[int]]) -> None:
        rows = list(rows)
        self._values = _integers(chain.from_iterable(rows))
        self._starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])

    def of(self, which: _Array) -> tuple[_Array, _Array]:
        """The values of the rows ``which``, and for each the place in ``which`` of its row."""
        lengths = self._starts[which + 1] - self._starts[which]
        places = np.repeat(np.arange(len(which)), lengths)
        offsets = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self._values[self._starts[which][places] + offsets], places

    def mark(self, last: _Array, which: _Array, positions: _Array) -> None:
        """Write the position of each row over its values in ``last``; positions rise."""
        values, places = self.of(which)
        last[values] = positions[places]

    def sums(self, weights: _Array) -> _Array:
        """For each row, the weights of its values added up."""
        totals = np.concatenate([[0], np.cumsum(weights[self._values], dtype=np.int64)])
        return totals[self._starts[1:]] - totals[self._starts[:-1]]


def _columns(schedule: Schedule) -> tuple[_Array, _Array, _Array]:
    """What runs at each position, which step that is, and whether it is a recomputation."""
    table = _integers(chain.from_iterable(schedule)).reshape(-1, 2)
    run, t = table[:, 0], table[:, 1]
    return run, t, t < 0


def _integers(values: Iterable[int]) -> _Array:
    return np.fromiter(values, np.int64)


def _before(changes: _Array) -> _Array:
    """The sum of all changes before each."""
    return np.cumsum(changes) - changes

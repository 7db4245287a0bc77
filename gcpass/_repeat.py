"""Recomputing a value more than once: the same problem with the later runs as ops of their own.

In a `Problem` every op runs once in the forward and at most once more in the backward, and what is
recomputed stays alive until its last reader. Below some peak that is not enough: to have the values
of a late stretch, everything before it must be recomputed, and held until its own gradients' turn.
*Stops* say where to let go instead. A stop is a position of the forward range, with a depth. It
splits the stretch around it in two:

    recompute the first part up to the values that cross the stop; hold only those;
    run the backward of the second part;
    recompute the first part again, for its own backward.

Both parts may have stops of their own, of greater depth: the schedules of Revolve (Griewank and
Walther 2000) and of Rotor (Beaumont et al. 2019), on any graph. Whatever is kept is not recomputed
at all, so stops only matter between kept values.

`repeat` makes each further run an op (`Phase.AGAIN`), read by what runs after it. The result is a
`Problem` again: the evaluation and the lowering need to know nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gcpass._problem import Constraint, Op, Phase, Problem, Rule, Storage

Stops = Mapping[int, int]  # position in the forward range -> depth


@dataclass(frozen=True, eq=False)
class Run:
    """A run of an op beyond the first.

    Attributes:
        reads: for each op that it reads, which run of that; None: the first.
        is_only: whether the first run never happens: the op runs in the backward only.
    """

    reads: tuple[tuple[int, Run | None], ...]
    is_only: bool


@dataclass(frozen=True)
class Repeated:
    """A problem in which some ops run again.

    Attributes:
        problem: with the further runs as ops of their own.
        place: for each op of the original problem, its index in this one.
        copies: index of each further run -> the op of the original problem that it repeats.
    """

    problem: Problem
    place: tuple[int, ...]
    copies: Mapping[int, int]


def repeat(problem: Problem, kept: Collection[int], stops: Stops) -> Repeated:
    """The problem whose schedule is that of keeping ``kept`` and letting go at ``stops``.

    Args:
        problem: in which every op runs once.
        kept: what will be kept; it is never run again.
        stops: where to let go.
    """
    return _Builder(problem, _Unrolled(problem, frozenset(kept), stops)).build()


class _Unrolled:
    """Which runs there are, and which one each op of the backward reads.

    Attributes:
        runs: for each op, its runs beyond the first.
        read_by_backward: for each op that the backward reads, the run it reads; None: the first.
    """

    def __init__(self, problem: Problem, kept: frozenset[int], stops: Stops) -> None:
        self._problem, self._kept, self._stops = problem, kept, stops
        self._taken: set[int] = set()  # ops whose first run something reads in the backward
        self._until = _last_readers(problem)
        self.runs: dict[int, list[Run]] = {}
        self.read_by_backward: dict[int, Run | None] = {}
        self._unroll(problem.forward_range, {})

    def _unroll(self, ops: range, held: dict[int, Run | None]) -> None:
        """Run what the backward of the stretch ``ops`` needs; ``held`` is alive all the while."""
        position = self._stop_inside(ops)
        if position is None:
            demanded = self._problem.demanded_in(ops)
            self.read_by_backward.update(self._run(demanded, ops, held))
            return
        before = range(ops.start, position)
        crossing = [op for op in before if self._until[op] >= position]
        held = held | self._run(crossing, before, held)
        self._unroll(range(position, ops.stop), held)
        self._unroll(before, held)

    def _stop_inside(self, ops: range) -> int | None:
        """The stop of least depth strictly inside a stretch; of several, the last."""
        inside = [p for p in self._stops if ops.start < p < ops.stop]
        return min(inside, key=lambda p: (self._stops[p], -p), default=None)

    def _run(
        self, goals: Sequence[int], ops: range, held: dict[int, Run | None]
    ) -> dict[int, Run | None]:
        """Run ``goals`` and what they need of ``ops``; what is kept or held is there."""
        needed: set[int] = set()
        stack = list(goals)
        while stack:
            op = stack.pop()
            if op in ops and op not in needed and op not in held and op not in self._kept:
                needed.add(op)
                stack += self._problem.ops[op].inputs
        runs = dict(held)
        for op in sorted(needed):
            runs[op] = self._next_run(op, {r: runs.get(r) for r in self._problem.ops[op].inputs})
        return {goal: runs.get(goal) for goal in goals}

    def _next_run(self, op: int, reads: dict[int, Run | None]) -> Run | None:
        """The first run of an op, if nothing has read it yet and it reads first runs only."""
        again = op in self._taken or any(reads.values())
        if not again or self._problem.ops[op].obeys(Rule.NEVER_RECOMPUTE):
            self._taken.add(op)
            return None
        is_first = op not in self._taken and op not in self.runs
        is_only = is_first and self._problem.ops[op].phase is Phase.EITHER
        run = Run(tuple(reads.items()), is_only)
        self.runs.setdefault(op, []).append(run)
        return run


def _last_readers(problem: Problem) -> list[int]:
    """For each op, the last op of the forward range that reads its value, or all its storages."""
    last = [-1] * len(problem.ops)
    for op in problem.forward_range:
        if problem.wanted[op]:
            for r in problem.ops[op].inputs:
                last[r] = op
    return [
        max(own, min((problem.last_readers[s] for s in op.storages), default=-1))
        for own, op in zip(last, problem.ops, strict=True)
    ]


class _Builder:
    """Lays the runs out as ops, each further run right after the first."""

    def __init__(self, problem: Problem, unrolled: _Unrolled) -> None:
        self._problem, self._unrolled = problem, unrolled
        self._ops: list[Op] = []
        self._storages: list[Storage] = []
        self._place: list[int] = []
        self._made: dict[Run, int] = {}
        self._first: dict[int, int] = {}  # storage of the original problem -> of its first run

    def build(self) -> Repeated:
        problem = self._problem
        copies: dict[int, int] = {}
        for index, op in enumerate(problem.ops):
            late = index in problem.backward_range
            reads = [self._read_late(r) if late else self._place[r] for r in op.inputs]
            self._place.append(self._add(index, reads, op))
            for number, run in enumerate(self._unrolled.runs.get(index, ()), start=2):
                reads = [self._place[r] if x is None else self._made[x] for r, x in run.reads]
                self._made[run] = self._add(index, reads, _again(op, number, run.is_only))
                copies[self._made[run]] = index
        for s, storage in enumerate(problem.storages):
            if storage.holder is not None:
                first = self._first[s]
                self._storages[first] = replace(
                    self._storages[first], holder=self._place[storage.holder]
                )
        built = replace(
            problem,
            ops=tuple(self._ops),
            storages=tuple(self._storages),
            outputs=tuple(self._place[op] for op in problem.outputs),
            gradients=tuple(self._read_late(op) for op in problem.gradients),
        )
        return Repeated(built, tuple(self._place), copies)

    def _read_late(self, op: int) -> int:
        """What the backward reads for an op of the original problem."""
        run = self._unrolled.read_by_backward.get(op)
        return self._place[op] if run is None else self._made[run]

    def _add(self, index: int, reads: list[int], op: Op) -> int:
        """Append a run of an op of the original problem that reads the given ops of this one."""
        here, problem = len(self._ops), self._problem
        seen = {
            s: mine
            for r, read in zip(problem.ops[index].inputs, reads, strict=True)
            for s, mine in zip(problem.ops[r].storages, self._ops[read].storages, strict=True)
        }
        for s in problem.produced[index]:
            seen[s] = len(self._storages)
            self._storages.append(Storage(problem.storages[s].nbytes, here, None))
            self._first.setdefault(s, seen[s])
        storages = tuple(seen[s] for s in op.storages)
        self._ops.append(replace(op, inputs=tuple(reads), storages=storages))
        return here


def _again(op: Op, number: int, is_only: bool) -> Op:
    """A further run of ``op``; it exists in the backward only, so it cannot be kept."""
    return replace(
        op,
        name=f"{op.name}_run{number}",
        phase=Phase.EITHER if is_only else Phase.AGAIN,
        constraint=Constraint(Rule.NEVER_KEEP, "once more: held in between, it would not fit"),
    )

"""What a plan costs and what memory it holds, moment by moment.

A plan keeps a set K of ops (each the holder of one storage). Then

- the forward runs what its outputs need and what K needs, in order; a value dies after its last
  reader unless the user or K holds it;
- the backward runs its fixed steps (`gcpass._backward`); just before a step reads a value that is
  neither an input nor kept, the value is recomputed, together with whatever of its ancestors is
  not alive yet, in forward order (*lazy* recomputation), and it dies after its last reader.

    peak(K) = max over moments of  base + kept and recomputed bytes alive  (`Evaluator.evaluate`)
    recompute(K) = sum of the times of what ran twice

The same sweep over the ops of one stretch of the forward, with everything before it taken as kept,
gives the memory a segment adds (`Evaluator.segment`): the quantity the solvers bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gcpass._backward import Backward
from gcpass._problem import Constraint, Phase, Problem, Rule
from gcpass._sweep import Fused, Moment, Schedule, Trace
from gcpass._unfused import Unfused


@dataclass(frozen=True, slots=True)
class Use:
    """What one graph takes of the memory of a step in which others run too (`gcpass._shared`).

    Attributes:
        forward_nbytes: the most alive while its forward runs.
        held_nbytes: alive between the two: what it keeps, and the outputs that the user holds.
        backward_nbytes: the most alive while its backward runs, what is held included.
    """

    forward_nbytes: int
    held_nbytes: int
    backward_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        return max(self.forward_nbytes, self.backward_nbytes)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one plan costs and holds.

    Attributes:
        peak: the moment at which most is alive.
        use: the memory of the forward, between the two, and of the backward.
        saved_nbytes: bytes of the kept storages.
        recomputed: ops that run in the backward although the forward runs them too.
        recompute_picoseconds: their time.
        keep_picoseconds: what keeping the kept values takes (`Problem.keep_picoseconds`).
        forward_order: what the forward runs, in order.
        backward_order: what the backward runs, in order.
    """

    peak: Moment
    use: Use
    saved_nbytes: int
    recomputed: tuple[int, ...]
    recompute_picoseconds: int
    keep_picoseconds: int
    forward_order: tuple[int, ...] = field(repr=False)
    backward_order: tuple[int, ...] = field(repr=False)

    @property
    def peak_nbytes(self) -> int:
        return self.peak.nbytes

    @property
    def overhead_picoseconds(self) -> int:
        """What the plan costs: what solvers minimise."""
        return self.recompute_picoseconds + self.keep_picoseconds

    def step_picoseconds(self, problem: Problem) -> int:
        """Time of the forward and the backward under this plan."""
        runs = (*self.forward_order, *self.backward_order)
        return sum(problem.ops[op].picoseconds for op in runs) + self.keep_picoseconds


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one way of treating a segment adds.

    Attributes:
        forward_nbytes: the most alive while its forward runs, without what earlier segments keep.
        backward_nbytes: the most alive while its backward runs, likewise, *including* the
            backward's own values.
        picoseconds: time of what runs twice.
    """

    forward_nbytes: int
    backward_nbytes: int
    picoseconds: int


@dataclass(frozen=True, slots=True)
class Run:
    """One plan's step, moment by moment.

    Attributes:
        kept: what is kept and read.
        moments: what is alive, op after op; ops that get no buffer have none.
        forward: what the forward runs, in order.
        schedule: what the backward runs: (op, -1) is a recomputation, (op, t) its own step t.
        fused_forward: ops of the forward that get no buffer.
        fused_backward: recomputed ops that get no buffer.
    """

    kept: frozenset[int]
    moments: tuple[Moment, ...]
    forward: Sequence[int]
    schedule: Schedule
    fused_forward: frozenset[int]
    fused_backward: frozenset[int]

    @property
    def peak(self) -> int:
        """The place of the fullest moment, the first of several."""
        return max(range(len(self.moments)), key=lambda place: self.moments[place].nbytes)


class Evaluator:
    """Evaluates plans of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.backward = Backward(problem)
        self._fuses = problem.codegen != "eager"
        self._memory = (Fused if self._fuses else Unfused)(problem, self.backward)
        self._has_rules = any(op.constraint is not None for op in problem.ops)
        self._to_keep = frozenset(
            op
            for op in problem.kept_storage
            if problem.wanted[op] and problem.ops[op].obeys(Rule.KEEP)
        )

    # -- the whole step -------------------------------------------------------------------------

    def evaluate(self, kept: Collection[int], order: Sequence[int] | None = None) -> Evaluation:
        """Evaluate keeping the storages held by the ops ``kept``.

        Args:
            kept: indices of ops, keys of `Problem.kept_storage`; the ones the backward does not
                read cost nothing and count for nothing.
            order: what the backward runs, in order, where another scheduler fixed it; None for
                lazy recomputation.

        Returns:
            The evaluation.
        """
        problem = self.problem
        everything = problem.forward_range
        kept = frozenset(kept)
        schedule = self._pull(kept, everything) if order is None else self._follow(order)
        used = self._memory.used(schedule, kept)
        forward = self._forward_order(used, everything)
        forward_moment, inside = self._memory.forward(forward, used)
        backward_moment = self._memory.backward(schedule, used, everything, inside)
        late = sorted(op for op, t in schedule if t < 0)
        twice = tuple(op for op in late if problem.ops[op].runs_twice)
        saved = [problem.kept_storage[k] for k in used]
        held = problem.output_storages.union(saved)
        return Evaluation(
            peak=max(forward_moment, backward_moment, key=lambda m: m.nbytes),
            use=Use(
                forward_nbytes=forward_moment.nbytes,
                held_nbytes=sum(problem.storages[s].nbytes for s in held),
                backward_nbytes=backward_moment.nbytes,
            ),
            saved_nbytes=sum(problem.storages[s].nbytes for s in saved),
            recomputed=twice,
            recompute_picoseconds=sum(problem.ops[o].picoseconds for o in twice),
            keep_picoseconds=sum(map(problem.keep_picoseconds, used)),
            forward_order=tuple(forward),
            backward_order=self._backward_order(schedule, in_order=order is None),
        )

    def trace(self, kept: Collection[int], order: Sequence[int] | None = None) -> Run:
        """Every moment of the step that `evaluate` would evaluate; the fullest is its peak."""
        kept = frozenset(kept)
        everything = self.problem.forward_range
        schedule = self._pull(kept, everything) if order is None else self._follow(order)
        memory, trace = Fused(self.problem, self.backward), Trace()
        used = memory.used(schedule, kept)
        forward = self._forward_order(used, everything)
        _, inside = memory.forward(forward, used, trace)
        memory.backward(schedule, used, everything, inside, trace)
        in_forward, in_backward = trace.without_buffer
        return Run(used, tuple(trace.moments), forward, schedule, in_forward, in_backward)

    def _backward_order(self, schedule: Schedule, *, in_order: bool) -> tuple[int, ...]:
        """Every op the backward graph holds, fused ones put back in their place."""
        if in_order and not self._fuses:  # every op is a step, and the end is the last
            return tuple([op for op, _ in schedule[:-1]])
        steps = self.backward.steps
        order: list[int] = []
        next_op = self.problem.backward_range.start
        for op, t in schedule:
            if t < 0:
                order.append(op)
                continue
            stop = min(steps[t].op + 1, len(self.problem.ops))
            order.extend(range(next_op, stop))
            next_op = max(next_op, stop)
        return tuple(order)

    # -- one segment ----------------------------------------------------------------------------

    def segment(self, ops: range, kept: Collection[int], interior: Collection[int]) -> SegmentCost:
        """What the stretch ``ops`` of the forward range adds when ``kept`` of it is kept.

        Args:
            ops: a stretch of the forward range; everything before it that it reads is kept.
            kept: what is kept of it, boundary included.
            interior: the ops of it that nothing after it recomputes from; their readers in the
                backward are the segment's window.

        Returns:
            The segment's own peak and recomputation.
        """
        kept = frozenset(kept)
        schedule = self._pull(kept, ops, roots=interior)
        forward, inside = self._memory.forward(self._forward_order(kept, ops), kept)
        backward = self._memory.backward(schedule, kept, ops, inside).nbytes if schedule else 0
        time = sum(self.problem.recompute_picoseconds(o) for o, t in schedule if t < 0)
        return SegmentCost(forward.nbytes, backward, time)

    # -- order ----------------------------------------------------------------------------------

    def _pull(
        self, kept: frozenset[int], ops: range, roots: Collection[int] | None = None
    ) -> Schedule:
        """The backward as a list of (op, -1) recomputations and (op, t) steps.

        Only values of ``ops`` are recomputed; earlier ones are taken as kept. With ``roots``, only
        the steps from the first to the last that reads a root are listed.
        """
        problem, steps, wanted_by = self.problem, self.backward.steps, self.backward.wanted_by
        if roots is None:
            times: Iterable[int] = range(len(steps))
        else:
            window = [t for r in roots for t in wanted_by.get(r, ())]
            if not window:
                return []
            first, last = min(window), max(window)
            times = sorted({t for o in ops for t in wanted_by.get(o, ()) if first <= t <= last})
        available = set(kept)
        schedule: Schedule = []
        start, stop = ops.start, ops.stop
        for t in times:
            stack = [n for n in steps[t].needs if n not in available and start <= n < stop]
            missing: set[int] = set()
            while stack:
                op = stack.pop()
                if op not in missing:
                    missing.add(op)
                    reads = problem.ops[op].inputs
                    stack += [r for r in reads if r not in available and r >= start]
            if missing:
                schedule += [(op, -1) for op in sorted(missing)]
                available |= missing
            schedule.append((steps[t].op, t))
        return schedule

    def _follow(self, order: Sequence[int]) -> Schedule:
        """The backward that runs ``order``, in the form of `_pull`."""
        times = {step.op: t for t, step in enumerate(self.backward.steps)}
        end = len(self.problem.ops)
        forward = self.problem.forward_range
        return [
            (op, -1 if op in forward else times[op])
            for op in (*order, end)
            if op in forward or op in times
        ]

    def _forward_order(self, kept: frozenset[int], ops: range) -> list[int]:
        """What the forward runs of ``ops``: all that is FORWARD, and what kept values need."""
        problem = self.problem
        run = {o for o in ops if problem.ops[o].phase is Phase.FORWARD}
        stack = [k for k in kept if k in ops and k not in run]
        while stack:
            op = stack.pop()
            if op not in run and op in ops:
                run.add(op)
                stack.extend(problem.ops[op].inputs)
        return sorted(run)

    # -- validity -------------------------------------------------------------------------------

    def violations(self, kept: Collection[int]) -> list[Constraint]:
        """The rules that keeping ``kept`` breaks, each with how; empty for a valid plan."""
        problem = self.problem
        if not self._has_rules:
            return []
        kept = frozenset(kept)
        run_again = (op for op, t in self._pull(kept, problem.forward_range) if t < 0)
        return [
            *_broken(problem, Rule.NEVER_RECOMPUTE, run_again, "is recomputed"),
            *_broken(problem, Rule.NEVER_KEEP, kept, "is kept"),
            *_broken(problem, Rule.KEEP, self._to_keep - kept, "is not kept"),
        ]


def _broken(problem: Problem, rule: Rule, ops: Iterable[int], how: str) -> Iterator[Constraint]:
    """The rule where ``ops`` are under it."""
    for op in map(problem.ops.__getitem__, ops):
        if op.constraint is not None and op.constraint.rule is rule:
            yield Constraint(rule, f"{op.name} {how}: {op.constraint.reason}")


__all__ = ["Evaluation", "Evaluator", "Moment", "Run", "SegmentCost", "Use"]

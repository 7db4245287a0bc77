"""What a plan costs and what memory it holds, moment by moment.

A plan keeps a set K of ops (each the holder of one storage). Then

- the forward runs what its outputs need and what K needs, in order; a value dies after its last
  reader unless the user or K holds it;
- the backward runs its fixed steps (`gcpass._backward`); just before a step reads a value that is
  neither an input nor kept, the value is recomputed, together with whatever of its ancestors is
  not alive yet, in forward order (*lazy* recomputation), and it dies after its last reader.

    peak(K) = max over moments of  base + kept and recomputed bytes alive       (`Evaluator.evaluate`)
    recompute(K) = sum of the times of what ran twice

The same sweep over the ops of one stretch of the forward, with everything before it taken as kept,
gives the memory a segment adds (`Evaluator.segment`): the quantity the solvers bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from gcpass._backward import MAX_FUSED_READS, Backward, is_input
from gcpass._problem import Phase, Problem, Rule


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory at one point of the step, by what it is.

    ``kept``: values kept for the backward; ``recomputed``: recomputed values; ``gradients``:
    finished gradients; ``outputs``: what the user holds; ``temporaries``: the rest.
    """

    op: str
    in_backward: bool
    nbytes: int
    kept: int
    recomputed: int
    gradients: int
    outputs: int
    temporaries: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one plan costs and holds.

    Attributes:
        peak: the moment at which most is alive.
        forward_peak_nbytes: the most alive while the forward runs.
        saved_nbytes: bytes of the kept storages.
        recomputed: ops that run in the backward although the forward runs them too.
        recompute_picoseconds: their time.
        forward_order: what the forward runs, in order.
        backward_order: what the backward runs, in order.
    """

    peak: Moment
    forward_peak_nbytes: int
    saved_nbytes: int
    recomputed: tuple[int, ...]
    recompute_picoseconds: int
    forward_order: tuple[int, ...] = field(repr=False)
    backward_order: tuple[int, ...] = field(repr=False)

    @property
    def peak_nbytes(self) -> int:
        return self.peak.nbytes


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


class Evaluator:
    """Evaluates plans of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.backward = Backward(problem)
        self._nbytes = [s.nbytes for s in problem.storages]
        self._inputs = [is_input(problem, i) for i in range(len(problem.ops))]

    # -- the whole step -------------------------------------------------------------------------

    def evaluate(self, kept: Collection[int]) -> Evaluation:
        """Evaluate keeping the storages held by the ops ``kept``.

        Args:
            kept: indices of ops, keys of `Problem.kept_storage`; the ones the backward does not
                read cost nothing and count for nothing.

        Returns:
            The evaluation.
        """
        problem = self.problem
        everything = problem.forward_range
        kept = frozenset(kept)
        sequence = self._pull(kept, everything)
        used = kept & self._read_by(sequence)
        forward = self._forward_order(used, everything)
        forward_moment = self._sweep_forward(forward, used)
        backward_moment = self._sweep_backward(sequence, used, everything)
        recomputed = tuple(sorted(o for o in (o for o, t in sequence if t < 0)))
        twice = tuple(o for o in recomputed if problem.ops[o].phase is Phase.FORWARD)
        storages = {problem.kept_storage[k] for k in used if k in problem.kept_storage}
        return Evaluation(
            peak=max(forward_moment, backward_moment, key=lambda m: m.nbytes),
            forward_peak_nbytes=forward_moment.nbytes,
            saved_nbytes=sum(self._nbytes[s] for s in storages),
            recomputed=twice,
            recompute_picoseconds=sum(problem.ops[o].picoseconds for o in twice),
            forward_order=tuple(forward),
            backward_order=self._backward_order(sequence),
        )

    def _backward_order(self, sequence: list[tuple[int, int]]) -> tuple[int, ...]:
        """Every op the backward graph holds, fused ones put back in their place."""
        steps = self.backward.steps
        order: list[int] = []
        next_op = self.problem.backward_range.start
        for op, t in sequence:
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
        sequence = self._pull(kept, ops, roots=interior)
        used = kept
        forward = self._sweep_forward(self._forward_order(used, ops), used)
        backward = self._sweep_backward(sequence, used, ops).nbytes if sequence else 0
        time = sum(self.problem.recompute_picoseconds(o) for o, t in sequence if t < 0)
        return SegmentCost(forward.nbytes, backward, time)

    # -- order ----------------------------------------------------------------------------------

    def _pull(
        self, kept: frozenset[int], ops: range, roots: Collection[int] | None = None
    ) -> list[tuple[int, int]]:
        """The backward as a sequence of (op, -1) recomputations and (op, t) steps.

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
            times = sorted(
                {t for o in ops for t in wanted_by.get(o, ()) if first <= t <= last}
            )
        available = set(kept)
        sequence: list[tuple[int, int]] = []
        inputs, start, stop = self._inputs, ops.start, ops.stop
        for t in times:
            missing: set[int] = set()
            stack = [n for n in steps[t].needs if start <= n < stop and n not in available]
            while stack:
                op = stack.pop()
                if op in missing:
                    continue
                missing.add(op)
                for read in problem.ops[op].inputs:
                    if read >= start and not inputs[read] and read not in available:
                        stack.append(read)
            for op in sorted(missing):
                sequence.append((op, -1))
            available |= missing
            sequence.append((steps[t].op, t))
        return sequence

    def _read_by(self, sequence: list[tuple[int, int]]) -> frozenset[int]:
        """Every op of the forward range that the sequence reads."""
        read: set[int] = set()
        for op, t in sequence:
            read.update(self.backward.steps[t].needs if t >= 0 else self.problem.ops[op].inputs)
        return frozenset(read)

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

    # -- bytes ----------------------------------------------------------------------------------

    def _sweep_forward(self, order: list[int], kept: frozenset[int]) -> Moment:
        """The fullest moment of the forward that runs ``order``."""
        problem, nbytes = self.problem, self._nbytes
        held = set(problem.output_storages)
        for k in kept:
            held.update(problem.ops[k].storages)
        outputs = set(problem.outputs)
        in_order = set(order)

        def needs_buffer(op: int) -> bool:
            return op in kept or op in outputs

        fused = self._fused(order, in_order, frozenset(), needs_buffer)
        reads = self._reads_through_fused(order, fused)
        last: dict[int, int] = {}
        for position, op in enumerate(order):
            if op not in fused:
                for s in (*problem.ops[op].storages, *reads[op]):
                    last[s] = position
        alive = alive_kept = 0
        best = (-1, 0, 0, "")
        dying: list[list[int]] = [[] for _ in order]
        for s, position in last.items():
            if s not in held and problem.storages[s].producer in in_order:
                dying[position].append(s)
        for position, op in enumerate(order):
            if op in fused:
                continue
            new = sum(nbytes[s] for s in problem.produced[op])
            kept_new = sum(nbytes[s] for s in problem.produced[op] if s in held)
            freed = sum(nbytes[s] for s in dying[position])
            during = alive + new + problem.ops[op].workspace_nbytes
            if self._in_place(op, new, dying[position]):
                during -= new
            alive_kept += kept_new
            if during > best[0]:
                best = (during, alive_kept, 0, problem.ops[op].name)
            alive += new - freed
        total, kept_bytes, _, name = best
        total = max(total, 0)
        return Moment(name, False, total, kept_bytes, 0, 0, 0, total - kept_bytes)

    def _sweep_backward(
        self, sequence: list[tuple[int, int]], kept: frozenset[int], ops: range
    ) -> Moment:
        """The fullest moment of the backward ``sequence``, kept values of ``ops`` included."""
        problem, nbytes, steps = self.problem, self._nbytes, self.backward.steps
        recomputed = [op for op, t in sequence if t < 0]
        in_backward = set(recomputed)
        extern = self.backward.read_by_extern
        fused = self._fused(recomputed, in_backward, kept, lambda op: op in extern)
        reads = self._reads_through_fused(recomputed, fused)
        outputs = problem.output_storages  # in the base already

        last: dict[int, int] = {}
        for position, (op, t) in enumerate(sequence):
            if t < 0:
                if op not in fused:
                    for s in (*problem.ops[op].storages, *reads[op]):
                        last[s] = position
            else:
                for need in steps[t].needs:
                    for s in reads[need] if need in fused else problem.ops[need].storages:
                        last[s] = position
        kept_storages = {
            s
            for k in kept
            if k in ops
            for s in problem.ops[k].storages
            if s in last and s not in outputs and problem.storages[s].producer in ops
        }
        dying: list[list[int]] = [[] for _ in sequence]
        for s, position in last.items():
            if s not in outputs:
                dying[position].append(s)
        alive_kept = sum(nbytes[s] for s in kept_storages)
        alive_new = 0
        born = set(kept_storages)
        best, at = -1, (0, 0, 0, 0)  # bytes; kept, recomputed, step, op
        t_next = next((t for _, t in sequence if t >= 0), 0)
        upcoming = [0] * len(sequence)
        for position in range(len(sequence) - 1, -1, -1):
            t_next = sequence[position][1] if sequence[position][1] >= 0 else t_next
            upcoming[position] = t_next
        previous = upcoming[0]
        for position, (op, t) in enumerate(sequence):
            if t < 0:
                if op in fused:
                    continue
                produced = [s for s in problem.produced[op] if s not in outputs]
                new = sum(nbytes[s] for s in produced)
                during = steps[upcoming[position]].base_before + alive_kept + alive_new + new
                during += problem.ops[op].workspace_nbytes
                if self._in_place(op, new, dying[position]):
                    during -= new
                born.update(produced)
                alive_new += new
            else:
                fullest = self._fullest_between(previous, t)
                step = steps[t]
                during = max(steps[fullest].base_during, step.base_during)
                if step.reusable and any(
                    nbytes[s] == step.reusable and s in born for s in dying[position]
                ):
                    during = max(
                        step.base_during - step.reusable,
                        steps[self._fullest_between(previous, t - 1)].base_during
                        if previous < t
                        else 0,
                    )
                elif steps[fullest].base_during > step.base_during:
                    t = fullest
                during += alive_kept + alive_new
                previous = sequence[position][1] + 1
            if during > best:
                best, at = during, (alive_kept, alive_new, upcoming[position], op)
            for s in dying[position]:
                if s in kept_storages:
                    alive_kept -= nbytes[s]
                elif s in born:
                    alive_new -= nbytes[s]
        kept_bytes, new_bytes, t, op = at
        gradients = self.backward.gradient_nbytes_at[t]
        outputs_bytes = self.backward.outputs_nbytes
        name = problem.ops[op].name if op < len(problem.ops) else "end of backward"
        return Moment(
            name,
            True,
            best,
            kept_bytes,
            new_bytes,
            gradients,
            outputs_bytes,
            best - kept_bytes - new_bytes - gradients - outputs_bytes,
        )

    def _fullest_between(self, first: int, last: int) -> int:
        """The step from ``first`` to ``last`` with the most base bytes (sparse table)."""
        if first >= last:
            return max(first, 0) if first == last else last
        level = (last - first + 1).bit_length() - 1
        row = self._fullest_table()[level]
        a, b = row[first], row[last - (1 << level) + 1]
        base = self.backward.steps
        return a if base[a].base_during >= base[b].base_during else b

    @lru_cache(maxsize=1)  # noqa: B019 - one table for the evaluator's life
    def _fullest_table(self) -> list[list[int]]:
        during = [s.base_during for s in self.backward.steps]
        rows = [list(range(len(during)))]
        width = 1
        while 2 * width <= len(during):
            row = rows[-1]
            rows.append(
                [
                    row[i] if during[row[i]] >= during[row[i + width]] else row[i + width]
                    for i in range(len(during) - 2 * width + 1)
                ]
            )
            width *= 2
        return rows

    # -- fusion ---------------------------------------------------------------------------------

    def _fused(self, order, in_order, kept, needs_buffer) -> frozenset[int]:  # noqa: ANN001
        """Ops of ``order`` computed inside the kernels that read them: they get no buffer.

        A fusible op does, when every op that reads it in the same graph is fusible, and nothing
        holds its value.
        """
        problem = self.problem
        if problem.codegen != "inductor":
            return frozenset()
        fused: set[int] = set()
        buffered_alias: set[int] = set()
        for op in reversed(order):
            view = not problem.produced[op] and problem.ops[op].storages
            readers = [r for r in problem.readers[op] if r in in_order]
            buffered = needs_buffer(op) or any(
                r in buffered_alias or not (problem.ops[r].fuses_inputs or self._is_view(r))
                for r in readers
            )
            if view:
                if buffered:
                    buffered_alias.add(op)
            elif problem.ops[op].fuses and not buffered:
                fused.add(op)
        return frozenset(fused)

    def _is_view(self, op: int) -> bool:
        return not self.problem.produced[op] and bool(self.problem.ops[op].storages)

    def _reads_through_fused(
        self, order: list[int], fused: frozenset[int]
    ) -> dict[int, frozenset[int]]:
        """For each op of ``order``, the storages its kernel reads (for a fused op: extends)."""
        problem = self.problem
        source: dict[int, frozenset[int]] = {}
        fused_storages = {s for o in fused for s in problem.produced[o]}
        reads: dict[int, frozenset[int]] = {}
        for op in order:
            found: set[int] = set()
            for read in problem.ops[op].inputs:
                if read in reads and (read in fused or self._reads_fused(read, fused_storages)):
                    found |= reads[read]
                else:
                    found.update(problem.ops[read].storages)
            reads[op] = frozenset(found)
        del source
        return reads

    def _reads_fused(self, op: int, fused_storages: set[int]) -> bool:
        return any(s in fused_storages for s in self.problem.ops[op].storages)

    def _in_place(self, op: int, new: int, dying: list[int]) -> bool:
        """Whether a fused kernel writes its output over an input that dies there."""
        return (
            self.problem.codegen == "inductor"
            and self.problem.ops[op].fuses
            and new > 0
            and any(self._nbytes[s] == new and s not in self.problem.produced[op] for s in dying)
        )

    # -- validity -------------------------------------------------------------------------------

    def violations(self, kept: Collection[int]) -> list[str]:
        """Constraints that keeping ``kept`` breaks, in words; empty for a valid plan."""
        problem = self.problem
        sequence = self._pull(frozenset(kept), problem.forward_range)
        broken = []
        for op, t in sequence:
            if t < 0 and problem.ops[op].obeys(Rule.NEVER_RECOMPUTE):
                broken.append(f"{problem.ops[op].name} is recomputed: {_reason(problem, op)}")
        for k in kept:
            if problem.ops[k].obeys(Rule.NEVER_KEEP):
                broken.append(f"{problem.ops[k].name} is kept: {_reason(problem, k)}")
        return broken


def _reason(problem: Problem, op: int) -> str:
    constraint = problem.ops[op].constraint
    return constraint.reason if constraint else ""


__all__ = ["MAX_FUSED_READS", "Evaluation", "Evaluator", "Moment", "SegmentCost"]

"""Adding up what is alive, op after op: the bytes behind every evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gcpass._backward import Backward
from gcpass._fusion import Fusion, fuse, writes_in_place
from gcpass._problem import Problem

Inside = Mapping[int, int]  # storage -> the storage that it is part of
Schedule = list[tuple[int, int]]  # (op, -1): a recomputation; (op, t): step t of the backward


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory at one point of the step, by what it is; the parts add up to ``nbytes``.

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


@dataclass
class Trace:
    """What sweeps note down where they are asked to; hot paths ask for nothing.

    Attributes:
        moments: every moment of the step, in the order they come.
        without_buffer: the ops that fusion gives no buffer, in the forward and in the backward.
    """

    moments: list[Moment] = field(default_factory=list)
    without_buffer: list[frozenset[int]] = field(default_factory=list)


class Fused:
    """Sweeps of one problem, op by op: right for any codegen, needed where ops fuse."""

    def __init__(self, problem: Problem, backward: Backward) -> None:
        self._problem, self._backward = problem, backward

    def forward(
        self, order: Sequence[int], kept: Collection[int], trace: Trace | None = None
    ) -> tuple[Moment, Inside]:
        """A forward that runs ``order`` and hands on ``kept``.

        Returns:
            Its fullest moment, and which storages are part of another.
        """
        problem = self._problem
        outputs = set(problem.outputs)
        fusion = fuse(problem, order, lambda op: op in kept or op in outputs)
        nbytes = [s.nbytes for s in problem.storages]
        held = set(problem.output_storages).union(*(problem.ops[k].storages for k in kept))
        held = {fusion.block(s) for s in held}
        returned = {fusion.block(s) for s in problem.output_storages}
        here = set(order) - fusion.fused  # what has a buffer, and views
        last: dict[int, int] = {}  # by block
        for position, op in enumerate(order):
            if op not in fusion.fused:
                for source in (op, *fusion.sources[op]):
                    for s in problem.ops[source].storages:
                        last[fusion.block(s)] = position
        mine = {s for s in last if s not in held and problem.storages[s].producer in here}
        dying = _by_position(last, mine, len(order))
        born: set[int] = set()
        alive = alive_kept = alive_returned = 0
        best = Moment("", False, 0, 0, 0, 0, 0, 0)
        for position, op in enumerate(order):
            if op in fusion.fused:
                continue
            made = {fusion.block(s) for s in problem.produced[op]} - born
            born |= made
            new = sum(nbytes[s] for s in made)
            alive_kept += sum(nbytes[s] for s in made if s in held and s not in returned)
            alive_returned += sum(nbytes[s] for s in made if s in returned)
            during = alive + new + problem.ops[op].workspace_nbytes
            over = fusion.over(op, dying[position])
            if writes_in_place(problem, op, new, [nbytes[s] for s in over if s not in made]):
                during -= new
            if during > best.nbytes or trace is not None:
                rest = during - alive_kept - alive_returned
                name = problem.ops[op].name
                now = Moment(name, False, during, alive_kept, 0, 0, alive_returned, rest)
                best = now if during > best.nbytes else best
                if trace is not None:
                    trace.moments.append(now)
            alive += new - sum(nbytes[s] for s in dying[position])
        if trace is not None:
            trace.without_buffer.append(fusion.fused)
        return best, fusion.inside

    def backward(
        self,
        schedule: Schedule,
        kept: Collection[int],
        ops: range,
        inside: Inside,
        trace: Trace | None = None,
    ) -> Moment:
        """The fullest moment of a backward; of the forward range only values of ``ops`` count.

        Args:
            schedule: what runs, in order; not empty, and with a step last.
            kept: what is kept.
            ops: the stretch whose kept and recomputed values count.
            inside: kept storages that the forward made part of another, all of which is kept.
            trace: where to note every moment down, or None.
        """
        problem, backward = self._problem, self._backward
        steps, count = backward.steps, len(problem.storages)
        nbytes = 2 * [s.nbytes for s in problem.storages]  # in the backward; of the forward
        recomputed = [op for op, t in schedule if t < 0]
        fusion = fuse(problem, recomputed, lambda op: op in backward.read_by_extern)
        mine = {s for k in kept if k in ops for s in problem.ops[k].storages}
        mine = {s for s in mine if problem.storages[s].producer in ops}
        wholes = set(inside.values())

        def block(s: int) -> int:
            """What a storage is a part of, or itself; of kept ones that the forward made."""
            if s not in mine:
                return fusion.block(s)
            return count + inside.get(s, s) if s in inside or s in wholes else s

        last: dict[int, int] = {}
        for s, position in _last_uses(backward, problem, schedule, fusion).items():
            last[block(s)] = max(last.get(block(s), -1), position)
        kept_alive = {block(s) for s in mine if block(s) in last}
        born = set(kept_alive)
        alive_kept, alive_new = sum(nbytes[s] for s in kept_alive), 0
        dying = _by_position(last, last, len(schedule))
        best, at = -1, (0, 0, 0, 0)  # bytes; kept, recomputed, op, step

        def note(total: int, kept_nbytes: int, new_nbytes: int, op: int, step: int) -> None:
            """``step``: the last one of the backward that has begun."""
            nonlocal best, at
            if total > best:
                best, at = total, (kept_nbytes, new_nbytes, op, step)
            if trace is not None:
                trace.moments.append(
                    late_moment(problem, backward, total, kept_nbytes, new_nbytes, op, step)
                )

        def written_over(storages: Iterable[int], size: int) -> tuple[int, int]:
            """Kept and recomputed bytes that turn into a new value of so many bytes."""
            there = (s for s in storages if s in born and nbytes[s] == size)
            return (size, 0) if next(there) in kept_alive else (0, size)

        next_step = _next_steps(schedule)
        unseen = next_step[0]  # the first step whose base has not been counted yet
        for position, (op, t) in enumerate(schedule):
            coming = next_step[position]
            alive = alive_kept + alive_new
            if unseen < coming:  # steps that read nothing of ``ops``
                fullest = backward.fullest_between(unseen, coming - 1)
                total = steps[fullest].base_during + alive
                note(total, alive_kept, alive_new, steps[fullest].op, fullest)
                unseen = coming
            if t >= 0:
                during = steps[t].base_during + alive
                reusable = steps[t].reusable_nbytes
                was_kept = was_new = 0
                if reusable:  # kept blocks of joins are numbered from ``count`` on
                    over = [s for s in dying[position] if s % count not in steps[t].reduced]
                    if any(nbytes[s] == reusable and s in born for s in over):
                        was_kept, was_new = written_over(over, reusable)
                        during -= reusable
                note(during, alive_kept - was_kept, alive_new - was_new, op, t)
                unseen = t + 1
            elif op not in fusion.fused:
                produced = [s for s in problem.produced[op] if s not in problem.output_storages]
                there = sum(nbytes[s] for s in produced if block(s) in kept_alive)
                made = {block(s) for s in produced} - born
                new = there + sum(nbytes[s] for s in made)
                during = steps[coming].base_before + alive + new + problem.ops[op].workspace_nbytes
                over = fusion.over(op, dying[position])
                before = [nbytes[s] for s in over if s in born]
                was_kept = was_new = 0
                if writes_in_place(problem, op, new, before):
                    was_kept, was_new = written_over(over, new)
                    during -= new
                born |= made
                alive_new += new
                note(during, alive_kept - was_kept, alive_new - was_new, op, coming - 1)
                alive_new -= there  # kept already
            for s in dying[position]:
                if s in kept_alive:
                    alive_kept -= nbytes[s]
                elif s in born:
                    alive_new -= nbytes[s]
        if trace is not None:
            trace.without_buffer.append(fusion.fused)
        return late_moment(problem, backward, best, *at)

    def used(self, schedule: Schedule, kept: Collection[int]) -> frozenset[int]:
        """What the schedule reads of ``kept``."""
        ops, steps = self._problem.ops, self._backward.steps
        places = self._problem.kept_storage
        read: set[int] = set()
        for op, t in schedule:
            for source in steps[t].needs if t >= 0 else ops[op].inputs:
                read.update(ops[source].storages)
        return frozenset(k for k in kept if places.get(k) in read)


def late_moment(
    problem: Problem,
    backward: Backward,
    nbytes: int,
    kept: int,
    recomputed: int,
    op: int,
    step: int,
) -> Moment:
    """A moment of the backward while ``op`` runs and ``step`` is the last that has begun."""
    gradients = backward.steps[step].gradient_nbytes if step >= 0 else 0
    outputs = backward.outputs_nbytes
    name = problem.ops[op].name if op < len(problem.ops) else "end of backward"
    rest = nbytes - kept - recomputed - gradients - outputs
    return Moment(name, True, nbytes, kept, recomputed, gradients, outputs, rest)


def _last_uses(
    backward: Backward, problem: Problem, schedule: Schedule, fusion: Fusion
) -> dict[int, int]:
    """For each storage of the forward range, the last position of the schedule that reads it."""
    last: dict[int, int] = {}
    for position, (op, t) in enumerate(schedule):
        if t >= 0:
            reads = [r for need in backward.steps[t].needs for r in fusion.behind(need)]
        else:
            reads = [] if op in fusion.fused else [op, *fusion.sources[op]]
        for read in reads:
            last.update(dict.fromkeys(problem.ops[read].storages, position))
    for s in problem.output_storages:
        last.pop(s, None)  # in the base already
    return last


def _next_steps(schedule: Schedule) -> list[int]:
    """For each position, the step at or after it."""
    upcoming, steps = 0, []
    for _, t in reversed(schedule):
        upcoming = t if t >= 0 else upcoming
        steps.append(upcoming)
    return steps[::-1]


def _by_position(last: dict[int, int], storages: Iterable[int], count: int) -> list[list[int]]:
    dying: list[list[int]] = [[] for _ in range(count)]
    for s in storages:
        dying[last[s]].append(s)
    return dying

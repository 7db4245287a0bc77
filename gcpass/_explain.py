"""What a plan does with every value the backward wants, and why, as rows of plain data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gcpass._evaluate import Evaluator, Run
from gcpass._lifetimes import Lifetimes
from gcpass._problem import Phase, Problem, Rule
from gcpass._units import PICOSECONDS, format_bytes, format_seconds

_LEAST = 5e-8  # seconds: less prints as 0.0 us


@dataclass(frozen=True, slots=True)
class Row:
    """One value that the backward wants, or several alike (``count``).

    Attributes:
        op: the op that produces it, by its name in the joint graph.
        target: what the op calls, such as ``"aten.mm"``.
        module: the module it came from, such as ``"layers.3.mlp"``.
        source: the line it came from, such as ``"model.py:41"``.
        nbytes: size of its storage.
        seconds: time of running the op once.
        decision: ``"kept"`` or ``"recomputed"``.
        why: the reason in a few words, without its numbers.
        count: how many values the row stands for; sizes and times are their sums.
        recompute_seconds: what recomputing it takes. Of a kept value, what it would take, together
            with all that would have to be recomputed for it; 0 if nothing may be.
        peak_bytes: of a kept value, its bytes at the plan's peak; of a recomputed one, the bytes
            that keeping it would add there.
        forced: whether a rule of the graph left no choice.
    """

    op: str
    target: str
    module: str
    source: str
    nbytes: int
    seconds: float
    decision: str
    why: str
    count: int = 1
    recompute_seconds: float = 0.0
    peak_bytes: int = 0
    forced: bool = False

    @property
    def because(self) -> str:
        """The reason with its numbers."""
        numbers = []
        if self.decision == "recomputed":
            if self.peak_bytes:
                numbers.append(f"saves {format_bytes(self.peak_bytes)} at the peak")
            if self.recompute_seconds >= _LEAST:
                numbers.append(f"takes {format_seconds(self.recompute_seconds)}")
        elif self.recompute_seconds >= _LEAST:
            numbers.append(f"recomputing would take {format_seconds(self.recompute_seconds)}")
        return f"{self.why} ({', '.join(numbers)})" if numbers else self.why


def explain(
    evaluator: Evaluator,
    run: Run,
    *,
    bounded: bool,
    policy: str | None = None,
    further: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> tuple[Row, ...]:
    """The rows of a plan, in forward order; views and empty values are left out.

    Args:
        evaluator: of the problem.
        run: of the plan.
        bounded: whether the plan was made for a budget.
        policy: the name of the policy that chose, or None for the optimiser.
        further: for each op that runs more than twice, its further runs.
    """
    lifetimes = Lifetimes(evaluator, run, further)
    return tuple(_Explainer(evaluator, run, lifetimes, bounded, policy).rows())


def candidates(problem: Problem) -> Iterator[tuple[int, Row]]:
    """Each op that a plan could keep and the backward wants, as a row without a decision."""
    for index in problem.forward_range:
        storage = problem.kept_storage.get(index)
        if storage is not None and problem.wanted[index] and problem.storages[storage].nbytes:
            op = problem.ops[index]
            made_by = problem.ops[problem.maker(index)]
            yield (
                index,
                Row(
                    op=op.name,
                    target=made_by.target,
                    module=made_by.module,
                    source=made_by.source,
                    nbytes=problem.storages[storage].nbytes,
                    seconds=made_by.picoseconds / PICOSECONDS,
                    decision="",
                    why="",
                ),
            )


class _Explainer:
    """The reasons of one plan."""

    def __init__(
        self,
        evaluator: Evaluator,
        run: Run,
        lifetimes: Lifetimes,
        bounded: bool,
        policy: str | None,
    ) -> None:
        self._problem, self._run = evaluator.problem, run
        self._bounded, self._policy = bounded, policy
        self._lifetimes = lifetimes
        self._late = frozenset(op for op, t in run.schedule if t < 0)
        self._demanded = evaluator.backward.wanted_by

    def rows(self) -> Iterator[Row]:
        problem, kept = self._problem, self._run.kept
        for op in problem.forward_range:
            if op in kept:
                if problem.storages[problem.kept_storage[op]].nbytes:
                    yield self._kept(op)
            elif op in self._late and self._not_kept(op):
                yield self._recomputed(op)

    def _not_kept(self, op: int) -> list[int]:
        """The storages that ``op`` allocates and the plan does not keep."""
        storages, kept = self._problem.storages, self._run.kept
        return [s for s in self._problem.produced[op] if storages[s].holder not in kept]

    def _kept(self, op: int) -> Row:
        problem = self._problem
        storage = problem.kept_storage[op]
        nbytes = problem.storages[storage].nbytes
        at_peak = nbytes if self._lifetimes.kept_at_peak(op) else 0
        again = _again(problem, op, self._run.kept | self._late)
        constraint = problem.ops[op].constraint
        forced = True
        if reason := constraint.reason if constraint else _runs_once(problem, op):
            why = reason
        elif storage in problem.output_storages:
            why = "the caller holds it anyway"
        elif again.kept_nbytes is None:
            why = again.reason
        else:
            forced, why = False, "cheaper to keep"
            if self._policy:
                why = f"policy {self._policy} keeps it"
            elif again.kept_nbytes >= nbytes:
                why = f"no larger than what must be kept otherwise: {again.reason}"
            elif self._bounded and not at_peak:
                why = "takes nothing at the peak"
        time = 0 if forced else again.picoseconds
        return self._row(op, nbytes, "kept", why, time, at_peak, forced)

    def _recomputed(self, op: int) -> Row:
        problem = self._problem
        constraint = problem.ops[op].constraint
        time, at_peak = problem.recompute_picoseconds(op), self._saved_at_peak(op)
        holders = [problem.storages[s].holder for s in self._not_kept(op)]
        price = sum(problem.keep_picoseconds(h) for h in holders if h is not None)
        never = constraint is not None and constraint.rule is Rule.NEVER_KEEP
        forced = never and problem.ops[op].phase is not Phase.AGAIN
        if constraint is not None and never:
            why = constraint.reason
        elif not problem.ops[op].runs_twice:
            why = "only the backward reads it"
        elif self._policy:
            why = f"policy {self._policy} does not keep it"
        elif time <= price:
            why = "faster than keeping it"
        elif self._bounded and at_peak:
            why = "frees memory at the peak"
        elif op not in self._demanded:
            why = "other recomputed values need it"
        elif self._bounded:
            why = "frees memory at other full moments"
        else:
            why = "takes next to no time"
        nbytes = sum(problem.storages[s].nbytes for s in problem.produced[op])
        return self._row(op, nbytes, "recomputed", why, time, at_peak, forced)

    def _saved_at_peak(self, op: int) -> int:
        """Bytes of what ``op`` makes that the peak would hold if they were kept, and does not."""
        problem, lifetimes, nbytes = self._problem, self._lifetimes, 0
        for s in self._not_kept(op):
            holder = problem.storages[s].holder
            if (
                holder in problem.kept_storage
                and s not in problem.output_storages
                and lifetimes.kept_at_peak(holder)
                and not lifetimes.now_at_peak(op, holder)
            ):
                nbytes += problem.storages[s].nbytes
        return nbytes

    def _row(
        self,
        index: int,
        nbytes: int,
        decision: str,
        why: str,
        recompute_picoseconds: int,
        peak_bytes: int,
        forced: bool,
    ) -> Row:
        op = self._problem.ops[index]
        return Row(
            op=op.name,
            target=op.target,
            module=op.module,
            source=op.source,
            nbytes=nbytes,
            seconds=op.picoseconds / PICOSECONDS,
            decision=decision,
            why=why,
            recompute_seconds=recompute_picoseconds / PICOSECONDS,
            peak_bytes=peak_bytes,
            forced=forced,
        )


@dataclass(frozen=True, slots=True)
class _Again:
    """What recomputing a kept value would take.

    Attributes:
        picoseconds: the time of all that would run for it.
        kept_nbytes: bytes that must be kept in its place, because they cannot run again; None if
            something that it needs can neither run again nor be kept.
        reason: why something cannot run again, if anything cannot.
    """

    picoseconds: int
    kept_nbytes: int | None
    reason: str


def _again(problem: Problem, op: int, there: Collection[int]) -> _Again:
    """What recomputing the value of ``op`` would take, where the ops ``there`` are at hand."""
    picoseconds, kept_nbytes, reason = 0, 0, ""
    can = True
    seen = {op}
    stack = [op]
    while stack:
        run = stack.pop()
        picoseconds += problem.recompute_picoseconds(run)
        for read in problem.ops[run].inputs:
            if read in seen or read in there or problem.is_input(read):
                continue
            seen.add(read)
            once = _runs_once(problem, read)
            if not once:
                stack.append(read)
                continue
            storages = problem.ops[read].storages
            can &= all(problem.storages[s].holder in problem.kept_storage for s in storages)
            kept_nbytes += sum(problem.storages[s].nbytes for s in storages)
            reason = reason or f"{problem.ops[read].target} ({once})"
    return _Again(picoseconds, kept_nbytes if can else None, reason)


def _runs_once(problem: Problem, op: int) -> str:
    """Why the value of ``op`` cannot be made again; empty if it can."""
    for maker in (op, *(problem.storages[s].producer for s in problem.ops[op].storages)):
        constraint = problem.ops[maker].constraint
        if constraint is not None and constraint.rule is Rule.NEVER_RECOMPUTE:
            return constraint.reason
    return ""


def fold(rows: Iterable[Row]) -> list[Row]:
    """Rows alike but for a layer's number, as one row each: ``layers.*.mlp``, counted."""
    groups: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        module = re.sub(r"\d+", "*", row.module)
        key = (module, row.target, row.decision, row.why)
        if key in groups:
            seen = groups[key]
            groups[key] = replace(
                seen,
                nbytes=seen.nbytes + row.nbytes,
                seconds=seen.seconds + row.seconds,
                count=seen.count + row.count,
                recompute_seconds=seen.recompute_seconds + row.recompute_seconds,
                peak_bytes=seen.peak_bytes + row.peak_bytes,
            )
        else:
            groups[key] = replace(row, module=module)
    return list(groups.values())

"""Which values a fusing compiler gives no buffer, and what its kernels read instead.

The rules, for the ops of one graph (forward, or backward) in order:

1. A pointwise op whose value nothing holds is computed inside the kernels that read it, if every
   one of its readers can do so (pointwise ops and reductions can; views pass the question on to
   their own readers).
2. A kernel then reads what the fused op would have read: those buffers live until that kernel runs.
3. A fused op that would read more than `MAX_READS` buffers gets a buffer after all, and so does
   one that several ops read and that would read more than `MAX_SHARED_READS` (Inductor's
   ``realize_acc_reads_threshold`` on the CPU and ``realize_reads_threshold``).
4. A join (``cat`` on the CPU) gets a buffer. An input of it that gets one too, and that a loop
   computes, is written straight into the join's: the two are one block, alive as long as either.
   (Not if a convolution has read it before, for that fixed its layout.)
5. A pointwise kernel writes its value over a buffer of that size that nothing reads after it; but a
   norm's backward, which first reduces what it then maps, is one kernel of two loops, and writes
   over nothing that the first of them read.

With ``codegen="eager"`` nothing is fused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from gcpass._problem import Kernel, Problem

MAX_READS = 12
MAX_SHARED_READS = 4
_FIXES_LAYOUT = "aten.convolution"
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the ops of one graph fuse.

    Attributes:
        fused: ops that get no buffer.
        sources: for each op, the ops with buffers (or outside the graph) that its kernel reads.
        inside: storages that are part of another, that of a join.
    """

    fused: frozenset[int]
    sources: dict[int, frozenset[int]]
    inside: dict[int, int]
    _unbuffered: frozenset[int]
    _reduced: dict[int, frozenset[int]]

    def block(self, storage: int) -> int:
        """The storage that one is a part of, or itself."""
        return self.inside.get(storage, storage)

    def over(self, op: int, dying: Collection[int]) -> Collection[int]:
        """Of the storages that nothing reads after ``op``, those that it may write over."""
        read = self.reduced(op)
        return [s for s in dying if s not in read] if read else dying

    def reduced(self, op: int) -> frozenset[int]:
        """What reductions read whose results a pointwise ``op`` reads."""
        return self._reduced.get(op, _NOTHING)

    def behind(self, op: int) -> frozenset[int]:
        """What a reader of ``op`` reads: ``op``, or if it has no buffer, its sources."""
        return self.sources[op] if op in self._unbuffered else frozenset({op})


def fuse(problem: Problem, order: Iterable[int], needs_buffer: Callable[[int], bool]) -> Fusion:
    """Apply the rules to the ops ``order``; ``needs_buffer(op)``: something holds its value."""
    order = list(order)
    fused = _candidates(problem, order, needs_buffer) if problem.codegen == "inductor" else set()
    sources: dict[int, frozenset[int]] = {}
    unbuffered: set[int] = set()  # fused ops, and views of them
    here = set(order)
    for op in order:
        found: set[int] = set()
        for read in problem.ops[op].inputs:
            found |= sources[read] if read in unbuffered else {read}
        sources[op] = frozenset(found)
        if op in fused and len(found) > MAX_SHARED_READS:
            shared = sum(reader in here for reader in problem.readers[op]) > 1
            if shared or len(found) > MAX_READS:
                fused.discard(op)
        if _has_no_buffer(problem, op, fused):
            unbuffered.add(op)
    inside = _inside(problem, order, fused) if problem.codegen == "inductor" else {}
    reduced = _reduced(problem, sources) if problem.codegen == "inductor" else {}
    return Fusion(frozenset(fused), sources, inside, frozenset(unbuffered), reduced)


def writes_in_place(problem: Problem, op: int, new_nbytes: int, dying: Iterable[int]) -> bool:
    """Whether a fused kernel writes its output over a block of so many bytes that dies there."""
    return (
        problem.codegen == "inductor"
        and problem.ops[op].fuses
        and new_nbytes > 0
        and new_nbytes in dying
    )


def _candidates(
    problem: Problem, order: list[int], needs_buffer: Callable[[int], bool]
) -> set[int]:
    """Rule 1, from the last op to the first."""
    here = set(order)
    fused: set[int] = set()
    buffered_views: set[int] = set()
    for op in reversed(order):
        buffered = needs_buffer(op) or any(
            reader in buffered_views
            or not (problem.ops[reader].fuses_inputs or problem.is_view(reader))
            for reader in problem.readers[op]
            if reader in here
        )
        if problem.is_view(op):
            if buffered:
                buffered_views.add(op)
        elif problem.ops[op].fuses and not buffered:
            fused.add(op)
    return fused


def _inside(problem: Problem, order: list[int], fused: set[int]) -> dict[int, int]:
    """Rule 4."""
    ops, here = problem.ops, set(order)
    inside: dict[int, int] = {}
    for op in order:
        if ops[op].kernel is not Kernel.JOIN:
            continue
        for read in ops[op].inputs:
            is_loop = ops[read].kernel in (Kernel.POINTWISE, Kernel.REDUCTION)
            if read not in here or read in fused or not is_loop or problem.is_view(read):
                continue
            before = (r for r in problem.readers[read] if r < op and r in here)
            if not any(ops[r].target == _FIXES_LAYOUT for r in before):
                inside.setdefault(ops[read].storages[0], ops[op].storages[0])
    return inside


def _reduced(problem: Problem, sources: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    """Rule 5: for each reduction, and each loop that reads one, what is read before it is done."""
    ops = problem.ops
    reduced: dict[int, frozenset[int]] = {}
    for op, found in sources.items():
        read = {s for source in found if source in reduced for s in reduced[source]}
        if ops[op].kernel is Kernel.REDUCTION:
            read.update(s for source in found for s in ops[source].storages)
        if read and ops[op].fuses_inputs:
            reduced[op] = frozenset(read)
    return reduced


def _has_no_buffer(problem: Problem, op: int, fused: set[int]) -> bool:
    """Whether ``op`` is fused, or a view of a fused op."""
    if op in fused:
        return True
    return problem.is_view(op) and all(
        problem.storages[s].producer in fused for s in problem.ops[op].storages
    )

"""The evaluator against an independent, naive simulation, on random problems."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from gcpass._evaluate import Evaluator
from gcpass._problem import Phase, Problem
from gcpass._sweep import Fused


def naive_peak(problem: Problem, kept: frozenset[int]) -> int:
    """Run the step op by op, freeing a storage when no later op of its graph reads it."""
    ops, _storages = problem.ops, problem.storages
    order: list[int] = []
    there = set(kept) | {i for i, op in enumerate(ops) if op.phase is Phase.INPUT}

    def pull(op: int) -> None:
        if op in there:
            return
        there.add(op)
        for read in ops[op].inputs:
            pull(read)
        order.append(op)

    for op in problem.backward_range:
        missing: set[int] = set()
        stack = list(ops[op].inputs)
        while stack:
            read = stack.pop()
            if read not in there and read not in missing and read < problem.backward_range.start:
                missing.add(read)
                stack.extend(ops[read].inputs)
        for read in sorted(missing):
            pull(read)
        there.add(op)
        order.append(op)
    for gradient in problem.gradients:
        assert gradient in there

    used = {r for op in order for r in ops[op].inputs}
    kept = frozenset(k for k in kept if k in used)
    forward = [i for i in problem.forward_range if ops[i].phase is Phase.FORWARD or i in kept]
    held = set(problem.outputs) | kept
    return max(
        run(problem, forward, set(), held),
        run(
            problem,
            order,
            kept | set(problem.outputs),
            set(problem.gradients) | set(problem.outputs),
        ),
    )


def run(problem: Problem, order: list[int], alive: set[int], held: set[int]) -> int:
    """The most bytes alive while ``order`` runs; one storage an op in these problems."""
    nbytes = {s.producer: s.nbytes for s in problem.storages}
    alive, peak = set(alive), 0
    tangents = {o for o in order if problem.ops[o].target == "tangent"}
    for position, op in enumerate(order):
        alive.add(op)
        peak = max(peak, sum(nbytes.get(a, 0) for a in alive))
        later = {r for o in order[position + 1 :] for r in problem.ops[o].inputs}
        alive = {a for a in alive if a in later or a in held or a in tangents}
    return peak


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_peak_is_that_of_a_naive_simulation(problem: Problem, random) -> None:
    kept = frozenset(k for k in problem.kept_storage if random.random() < 0.5)
    assert Evaluator(problem).evaluate(kept).peak_nbytes == naive_peak(problem, kept)


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_parts_of_the_peak_add_up(problem: Problem, random) -> None:
    kept = frozenset(k for k in problem.kept_storage if random.random() < 0.5)
    peak = Evaluator(problem).evaluate(kept).peak
    parts = peak.kept, peak.recomputed, peak.gradients, peak.outputs, peak.temporaries
    assert sum(parts) == peak.nbytes
    assert min(parts) >= 0


@given(problems())
@settings(max_examples=100, deadline=None)
def test_keeping_everything_recomputes_nothing(problem: Problem) -> None:
    evaluation = Evaluator(problem).evaluate(frozenset(problem.kept_storage))
    assert evaluation.recompute_picoseconds == 0
    assert evaluation.recomputed == ()


@given(problems())
@settings(max_examples=100, deadline=None)
def test_the_whole_forward_is_one_segment(problem: Problem) -> None:
    """A segment that is everything costs what the evaluation says."""
    evaluator = Evaluator(problem)
    kept = frozenset(list(problem.kept_storage)[::2])
    evaluation = evaluator.evaluate(kept)
    demanded = [o for o in problem.forward_range if o in evaluator.backward.wanted_by]
    cost = evaluator.segment(problem.forward_range, kept, demanded)
    assert cost.picoseconds == evaluation.recompute_picoseconds


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_sums_on_arrays_are_the_same(problem: Problem, random) -> None:
    """Of the whole step, and of a stretch."""
    evaluator = Evaluator(problem)
    kept = frozenset(k for k in problem.kept_storage if random.random() < 0.5)
    forward = problem.forward_range
    start, stop = sorted(random.sample(range(forward.start, forward.stop + 1), 2))
    interior = [op for op in range(start, stop) if random.random() < 0.7]
    on_arrays = evaluator.evaluate(kept), evaluator.segment(range(start, stop), kept, interior)
    evaluator._memory, evaluator._fuses = Fused(problem, evaluator.backward), True
    assert on_arrays == (
        evaluator.evaluate(kept),
        evaluator.segment(range(start, stop), kept, interior),
    )

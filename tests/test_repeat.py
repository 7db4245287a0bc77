"""Values recomputed more than once: the repeated problem, its plans, and what really runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from _training import assert_same, compiled, gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import build_problem, problems
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import gcpass
from gcpass._evaluate import Evaluation, Evaluator
from gcpass._problem import Problem
from gcpass._repeat import Repeated, repeat
from gcpass._solvers import Status, find_solver, sweep
from gcpass.fx._measure import Step
from gcpass.fx._options import Options, make_request

pytestmark = pytest.mark.filterwarnings("ignore:gcpass. memory_budget")

MUST_RECOMPUTE = CheckpointPolicy.MUST_RECOMPUTE

Value = tuple[str, tuple["Value", ...]]


def evaluate(repeated: Repeated, kept: frozenset[int]) -> Evaluation:
    return Evaluator(repeated.problem).evaluate([repeated.place[k] for k in kept])


def chain(length: int, nbytes: int = 4) -> Problem:
    """Value i is op i + 1, reads the one before, and takes a second."""
    return build_problem([[i] for i in range(length)], [nbytes] * length, [1] * length)


def values(problem: Problem, copies: dict[int, str]) -> list[Value]:
    """What each op computes, as a term; a further run is called what it repeats."""
    terms: list[Value] = []
    for index, op in enumerate(problem.ops):
        terms.append((copies.get(index, op.name), tuple(terms[r] for r in op.inputs)))
    return terms


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, frozenset[int], dict[int, int]]:
    problem = draw(problems(most=8))
    forward = problem.forward_range
    kept = frozenset(draw(st.sets(st.sampled_from(sorted(problem.kept_storage)))))
    positions = st.integers(forward.start + 1, forward.stop - 1)
    return problem, kept, draw(st.dictionaries(positions, st.integers(1, 3), max_size=4))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_every_run_computes_what_the_first_did(case) -> None:
    problem, kept, stops = case
    repeated = repeat(problem, kept, stops)
    names = {here: problem.ops[was].name for here, was in repeated.copies.items()}
    first, now = values(problem, {}), values(repeated.problem, names)
    assert [now[here] for here in repeated.place] == first
    assert all(now[here] == first[was] for here, was in repeated.copies.items())
    assert [now[g] for g in repeated.problem.gradients] == [first[g] for g in problem.gradients]


@given(cases())
@settings(max_examples=200, deadline=None)
def test_what_the_schedule_reads_is_there(case) -> None:
    problem, kept, stops = case
    repeated = repeat(problem, kept, stops)
    evaluation = evaluate(repeated, kept)
    ops, start = repeated.problem.ops, repeated.problem.forward_range.start
    there = {repeated.place[k] for k in kept} | set(range(start))
    for op in evaluation.backward_order:
        assert all(r in there for r in ops[op].inputs), ops[op].name
        there.add(op)
    assert set(evaluation.forward_order).isdisjoint(repeated.copies)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_without_stops_nothing_changes(case) -> None:
    problem, kept, _ = case
    repeated = repeat(problem, kept, {})
    assert repeated.problem == problem and not repeated.copies


def test_a_stop_lets_go_of_what_comes_before_it() -> None:
    problem = chain(12)  # ops 1 to 12
    once = evaluate(repeat(problem, frozenset(), {}), frozenset())
    assert once.peak_nbytes == 50  # 11 values, a gradient, its tangent and the loss
    assert once.recompute_picoseconds == 11
    twice = evaluate(repeat(problem, frozenset(), {7: 1}), frozenset())
    assert twice.peak_nbytes == 30  # the value before the stop and the five after it
    assert twice.recompute_picoseconds == 16  # the five before that one run again


def test_stops_within_stops() -> None:
    problem = chain(12)
    thrice = evaluate(repeat(problem, frozenset(), {7: 1, 4: 2, 10: 2}), frozenset())
    assert thrice.peak_nbytes == 22
    assert thrice.recompute_picoseconds == 20


def test_what_is_kept_is_never_run_again() -> None:
    problem = chain(12)
    kept = frozenset({6})  # just before the stop: nothing is left to let go of
    assert not repeat(problem, kept, {7: 1}).copies


@pytest.mark.parametrize("length", [8, 16, 32])
def test_a_budget_below_the_floor_of_one_recomputation_is_met(length: int) -> None:
    evaluator = Evaluator(chain(length, 64))
    floor = find_solver("segments")(evaluator, 1).evaluation.peak_nbytes
    budget = int(floor * 0.85)
    solution = find_solver("auto")(evaluator, budget)
    assert solution.status is Status.FEASIBLE and solution.stops
    assert solution.evaluation.peak_nbytes <= budget
    judged = evaluate(repeat(evaluator.problem, solution.kept, solution.stops), solution.kept)
    assert judged == solution.evaluation


def test_the_floor_of_a_long_chain_grows_slower_than_its_square_root() -> None:
    def floors(length: int) -> tuple[int, int]:
        evaluator = Evaluator(chain(length, 64))
        solvers = find_solver("segments"), find_solver("auto")
        once, more = (solve(evaluator, 1).evaluation.peak_nbytes for solve in solvers)
        return once, more

    (once_short, more_short), (once_long, more_long) = floors(16), floors(64)
    assert more_short < once_short
    assert once_long / once_short > 1.7  # 2, but for what is always alive
    assert more_long / more_short < 1.6


def test_the_frontier_goes_on_below_that_floor() -> None:
    evaluator = Evaluator(chain(20, 64))
    floor = find_solver("segments")(evaluator, 1).evaluation.peak_nbytes
    found = sweep(evaluator, 8)
    assert len(found) <= 8
    peaks = [s.evaluation.peak_nbytes for s in found]
    times = [s.evaluation.recompute_picoseconds for s in found]
    assert peaks == sorted(peaks, reverse=True) and times == sorted(times)
    assert all(bool(s.stops) == (s.evaluation.peak_nbytes < floor) for s in found)


# -- what really runs --------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block of an even width, with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.body(x))


def deep(dropout: float = 0.0, layers: int = 12, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block(width, dropout) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 4)).double()


def mean_square_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).square().mean()


def data() -> Tensor:
    return torch.randn(512, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def smallest(
    fn: Callable[..., Any], args: tuple[Tensor], solver: str, codegen: str, budget: int = 1
) -> Step:
    """A step whose plan is within ``budget``, or has the smallest peak the solver finds."""
    request = make_request(budget, None, solver, "best")
    return Step(fn, args, None, Options(request=request, codegen=codegen))


def below_the_floor(fn: Callable[..., Any], codegen: str, part: float = 0.9) -> int:
    """A budget that no plan meets that recomputes each value once at most."""
    plan = gcpass.plan(
        fn, (data(),), memory_budget=1, solver="segments", on_infeasible="best", codegen=codegen
    )
    return int(plan.predicted_peak_bytes * part)


def test_gradients_are_eagers_and_the_budget_is_kept() -> None:
    model = deep()
    fn = mean_square_of(model)
    budget = below_the_floor(fn, "eager")
    plan = gcpass.plan(fn, (data(),), memory_budget=budget, codegen="eager")
    assert plan.stops and "more than once" in plan.summary()
    assert any("once more" in row.why for row in plan.rows())
    step = compiled(fn, {"memory_budget": budget})
    got, expected = gradients(step, (data(),), model), gradients(fn, (data(),), model)
    assert_same(got, expected, rtol=1e-12, atol=1e-14)
    measured = gcpass.measure(fn, (data(),), memory_budget=budget, codegen="eager", steps=1)
    assert measured.peak_bytes <= budget
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=0.001)


def test_dropout_masks_are_the_forwards() -> None:
    """sum(y) = <W, dL/dW> + <b, dL/db> of the last layer, only if its input is the forward's."""
    model = deep(dropout=0.3)
    budget = below_the_floor(lambda x: model(x).sum(), "eager", 0.95)
    step = compiled(lambda x: model(x).sum(), {"memory_budget": budget, "on_infeasible": "best"})
    loss = step(data())
    loss.backward()
    last = model[-1]
    assert isinstance(last, nn.Linear)
    assert last.weight.grad is not None and last.bias.grad is not None
    through = (last.weight * last.weight.grad).sum() + (last.bias * last.bias.grad).sum()
    torch.testing.assert_close(through, loss, rtol=1e-10, atol=1e-10)


def test_a_stored_plan_is_replayed() -> None:
    model = deep()
    fn = mean_square_of(model)
    budget = below_the_floor(fn, "eager")
    plan = gcpass.plan(fn, (data(),), memory_budget=budget, codegen="eager")
    again = gcpass.Plan.from_json(plan.to_json())
    assert again == plan
    step = compiled(fn, {"plan": again})
    assert_same(gradients(step, (data(),), model), gradients(fn, (data(),), model))


def test_a_region_that_the_user_checkpointed_is_not_run_a_third_time() -> None:
    model = deep()
    region = partial(create_selective_checkpoint_contexts, lambda *_, **__: MUST_RECOMPUTE)

    def fn(x: Tensor) -> Tensor:
        for block in list(model)[:-1]:
            x = checkpoint(block, x, use_reentrant=False, context_fn=region)
        return model[-1](x).sum()

    step = smallest(fn, (data(),), "auto", "eager")
    step.run()
    assert step.plans and not step.plans[0].stops


@pytest.mark.inductor
def test_inductor_runs_it_within_the_budget() -> None:
    model = deep().float()
    args = (data().float(),)
    fn = mean_square_of(model)
    once = smallest(fn, args, "segments", "inductor")
    once.run()
    budget = int(once.peak_bytes() * 0.95)
    more = smallest(fn, args, "auto", "inductor", budget)
    more.run()
    assert more.peak_bytes() <= budget
    assert more.plans[0].stops
    got = gradients(compiled(fn, {"memory_budget": budget}, "inductor"), args, model)
    assert_same(got, gradients(fn, args, model))

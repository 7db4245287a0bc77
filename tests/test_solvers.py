"""Solvers and cuts against exhaustive search on small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import build_problem, problems

from gcpass._errors import UnsupportedGraph
from gcpass._evaluate import Evaluation, Evaluator
from gcpass._problem import Constraint, Op, Phase, Problem, Rule
from gcpass._repeat import repeat
from gcpass._solvers import Status, _flow, _ilp, find_solver
from gcpass._solvers._bound import lower_bound
from gcpass._solvers._boundaries import find_boundaries
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull

pytestmark = pytest.mark.usefixtures("thorough_search")


def subsets(problem: Problem):
    values = sorted(problem.kept_storage)
    for n in range(len(values) + 1):
        yield from map(frozenset, itertools.combinations(values, n))


def every_plan(evaluator: Evaluator) -> list[Evaluation]:
    return [evaluator.evaluate(kept) for kept in subsets(evaluator.problem)]


def least_time(plans: list[Evaluation], budget: int) -> int | None:
    """Of the plans within the budget; None if there are none."""
    times = (p.recompute_picoseconds for p in plans if p.peak_nbytes <= budget)
    return min(times, default=None)


@given(problems(most=7), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_a_cut_is_the_cheapest_plan_at_its_price(problem: Problem, price: int) -> None:
    evaluator = Evaluator(problem)
    choice = CutNetwork(problem, problem.forward_range, ()).cut(Fraction(price))

    def cost(kept: frozenset[int]) -> int:
        evaluation = evaluator.evaluate(kept)
        return price * evaluation.saved_nbytes + evaluation.recompute_picoseconds

    cheapest = min(cost(kept) for kept in subsets(problem))
    assert choice.picoseconds + price * choice.nbytes <= cheapest
    assert cost(choice.kept) == choice.picoseconds + price * choice.nbytes


@given(problems(most=9))
@settings(max_examples=100, deadline=None)
def test_cuts_between_two_known_ones_are_exact(problem: Problem) -> None:
    """The hull's cuts, from which all that is decided was taken out, against whole ones."""
    network = CutNetwork(problem, problem.forward_range, ())
    corners = Hull(network).spread(100)
    for a, b in itertools.pairwise(corners):
        price = Fraction(b.picoseconds - a.picoseconds, a.nbytes - b.nbytes)
        whole = CutNetwork(problem, problem.forward_range, ()).cut(price)
        assert a.picoseconds + price * a.nbytes == whole.picoseconds + price * whole.nbytes


@given(st.lists(st.tuples(*[st.integers(1, 3)] * 3), min_size=2, max_size=4), st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_values_that_are_alike_are_cut_as_one(
    statistics: list[tuple[int, int, int]], price: int
) -> None:
    """Layers whose values make several of one size and time, all of them read by the next."""
    reads, sizes, times, before = [], [], [], [0]
    for count, nbytes, time in statistics:
        reads += [before] * count
        sizes += [nbytes] * count
        times += [time] * count
        before = list(range(len(reads) - count + 1, len(reads) + 1))
    problem = build_problem(reads, sizes, times)
    network = CutNetwork(problem, problem.forward_range, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CutNetwork, "_merge_parallel", lambda network: None)
        whole = CutNetwork(problem, problem.forward_range, ())
        expected = whole.cut(Fraction(price))
    assert network.cut(Fraction(price)) == expected
    if any(count > 1 for count, _, _ in statistics[:-1]):
        assert len(network.edges(Fraction(1))[0]) < len(whole.edges(Fraction(1))[0])


@given(problems(most=8))
@settings(max_examples=60, deadline=None)
def test_the_hull_falls_and_is_convex(problem: Problem) -> None:
    corners = Hull(CutNetwork(problem, problem.forward_range, ())).spread(20)
    for a, b in itertools.pairwise(corners):
        assert a.nbytes > b.nbytes and a.picoseconds <= b.picoseconds
    slopes = [
        Fraction(b.picoseconds - a.picoseconds, a.nbytes - b.nbytes)
        for a, b in itertools.pairwise(corners)
    ]
    assert slopes == sorted(slopes)


@given(problems(most=8), st.floats(0.3, 1.0))
@settings(max_examples=60, deadline=None)
def test_a_plan_is_within_its_budget_or_says_that_it_is_not(
    problem: Problem, fraction: float
) -> None:
    evaluator = Evaluator(problem)
    solve = find_solver("auto")
    unconstrained = solve(evaluator, None).evaluation.peak_nbytes
    budget = max(int(fraction * unconstrained), 1)
    solution = solve(evaluator, budget)
    within = solution.evaluation.peak_nbytes <= budget
    assert (solution.status is Status.FEASIBLE) == within
    assert evaluator.violations(solution.kept) == []
    repeated = repeat(problem, solution.kept, solution.stops)
    placed = [repeated.place[k] for k in solution.kept]
    assert solution.evaluation == Evaluator(repeated.problem).evaluate(placed)


def test_chains_of_identical_layers_get_the_best_plan() -> None:
    """Against exhaustive search, at every budget."""
    for length in (4, 6, 8):
        problem = build_problem([[i] for i in range(length)], [8] * length, [5] * length)
        evaluator = Evaluator(problem)
        plans = every_plan(evaluator)
        for budget in sorted({p.peak_nbytes for p in plans}):
            best = least_time(plans, budget)
            found = find_solver("auto")(evaluator, budget)
            assert found.status is Status.FEASIBLE
            assert found.evaluation.recompute_picoseconds == best


@given(problems(most=8), st.floats(0.3, 1.0))
@settings(max_examples=60, deadline=None)
def test_small_problems_get_a_plan_close_to_the_best(problem: Problem, fraction: float) -> None:
    evaluator = Evaluator(problem)
    plans = every_plan(evaluator)
    budget = max(int(fraction * max(p.peak_nbytes for p in plans)), 1)
    best = least_time(plans, budget)
    found = find_solver("segments")(evaluator, budget)
    assert (found.status is Status.FEASIBLE) == (best is not None)
    if best is not None:
        gap = found.evaluation.recompute_picoseconds - best
        assert gap <= 0.1 * problem.forward_picoseconds


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_rules_are_followed_at_every_budget(problem: Problem, data: st.DataObject) -> None:
    """Small problems are searched value by value, whatever came before: under the rules too."""
    rules = st.sampled_from([None, *Rule])
    ops = [
        replace(op, constraint=Constraint(rule, "told to")) if rule is not None else op
        for op in problem.ops
        for rule in [data.draw(rules) if op.name.startswith("v") else None]
    ]
    problem = replace(problem, ops=tuple(ops))
    evaluator = Evaluator(problem)
    keep = {op for op in problem.kept_storage if problem.wanted[op] and ops[op].obeys(Rule.KEEP)}
    never = {op for op in range(len(ops)) if ops[op].obeys(Rule.NEVER_KEEP)}
    for budget in (1, sum(s.nbytes for s in problem.storages) // 2, None):
        try:
            kept = find_solver("segments")(evaluator, budget).kept
        except UnsupportedGraph:
            return  # rules that leave no plan
        assert keep <= kept and not never & kept
        assert not evaluator.violations(kept)


def test_what_must_not_be_recomputed_is_kept_or_stood_for() -> None:
    problem = build_problem([[0], [1], [2], [3]], [1, 50, 1, 1], [1, 1, 1, 1])
    rule = Constraint(Rule.NEVER_RECOMPUTE, "a random op")
    ops = list(problem.ops)
    op = ops[2]
    ops[2] = Op(op.name, op.target, op.phase, op.inputs, op.storages, 1, constraint=rule)
    problem = Problem(tuple(ops), problem.storages, problem.outputs, problem.gradients)
    kept = CutNetwork(problem, problem.forward_range, ()).smallest().kept
    assert Evaluator(problem).violations(kept) == []
    assert Evaluator(problem).violations(frozenset()) != []


def test_boundaries_count_what_crosses_them() -> None:
    """A skip from the first value to the last crosses everything between."""
    problem = build_problem([[0], [1], [2], [1, 3], [4]], [7, 3, 2, 5, 1], [1] * 5)
    for boundary in find_boundaries(problem, 10):
        if boundary.position in (3, 4):
            assert 1 in boundary.crossing
    assert all(
        problem.ops[h].phase is Phase.FORWARD
        for b in find_boundaries(problem, 10)
        for h in b.crossing
    )


def test_where_what_crosses_only_grows_or_shrinks_there_are_boundaries_too() -> None:
    """Skips across a whole that is too large to be searched value by value.

    All that the first half makes must be alive in its middle, half of what is kept without a bound;
    no position is narrower than both of its neighbours, yet the second half can be recomputed.
    """
    depth = 500
    down = [[i] for i in range(depth)]
    up = [sorted({depth + i, depth - i}) for i in range(depth)]
    problem = build_problem(down + up, [10] * (2 * depth), [7] * (2 * depth))
    evaluator = Evaluator(problem)
    for fraction in (0.7, 0.6):
        budget = int(fraction * 10 * 2 * depth)
        solution = find_solver("auto")(evaluator, budget)
        assert solution.evaluation.peak_nbytes <= budget
        assert solution.evaluation.recompute_picoseconds < 0.5 * problem.forward_picoseconds


@given(problems(most=8), st.floats(0.2, 1.0))
@settings(max_examples=100, deadline=None)
def test_the_lower_bound_is_never_above_the_optimum(problem: Problem, fraction: float) -> None:
    evaluator = Evaluator(problem)
    plans = every_plan(evaluator)
    budget = max(int(fraction * max(p.peak_nbytes for p in plans)), 1)
    best = least_time(plans, budget)
    bound = lower_bound(evaluator, budget)
    assert (bound is not None and bound <= best) if best is not None else True


def test_the_lower_bound_of_a_chain_is_its_optimum() -> None:
    problem = build_problem([[i] for i in range(8)], [10] * 8, [3] * 8)
    evaluator = Evaluator(problem)
    plans = every_plan(evaluator)
    peaks = sorted({p.peak_nbytes for p in plans})
    best = [least_time(plans, b) for b in peaks]
    assert best[0] is not None and best[0] > 0
    assert [lower_bound(evaluator, b) for b in peaks] == best
    assert lower_bound(evaluator, 1) is None  # no plan at all: proven, not just not found


@given(problems(most=9), st.fractions(0, 5, max_denominator=7))
@settings(max_examples=60, deadline=None)
def test_both_flow_engines_find_the_same_cut(problem: Problem, price: Fraction) -> None:
    pytest.importorskip("ortools")
    network = CutNetwork(problem, problem.forward_range, ())
    capacities, unbounded = network.edges(price)
    assert _flow.by_ortools(capacities, unbounded) == _flow.by_networkx(capacities, unbounded)


@pytest.mark.parametrize("engine", ["by_networkx", "by_ortools"])
def test_a_path_that_may_not_be_cut_is_told(engine: str) -> None:
    if engine == "by_ortools":
        pytest.importorskip("ortools")
    unbounded = [(_flow.SOURCE, "v"), ("v", _flow.SINK)]
    with pytest.raises(UnsupportedGraph, match="leave no plan"):
        getattr(_flow, engine)({(_flow.SOURCE, "u"): 3}, unbounded)


@given(problems(most=6), st.floats(0.4, 1.0))
@settings(max_examples=25, deadline=None)
def test_the_integer_program_is_within_the_budget_and_the_usual_solver_no_worse(
    problem: Problem, fraction: float
) -> None:
    pytest.importorskip("scipy")
    evaluator = Evaluator(problem)
    budget = int(fraction * find_solver("auto")(evaluator, None).evaluation.peak_nbytes)
    best = least_time(every_plan(evaluator), budget)
    kept = _ilp.Program(evaluator, budget).solve(seconds=20)
    if kept is None:
        return
    assert best is not None
    found = evaluator.evaluate(kept)
    assert evaluator.violations(kept) == []
    assert found.peak_nbytes <= budget
    usual = find_solver("auto")(evaluator, budget).evaluation.recompute_picoseconds
    assert best <= usual <= found.recompute_picoseconds


def test_the_integer_program_finds_the_best_plan_of_a_chain() -> None:
    pytest.importorskip("scipy")
    problem = build_problem([[i] for i in range(6)], [10] * 6, [3] * 6)
    evaluator = Evaluator(problem)
    solution = find_solver("ilp")(evaluator, 52)
    assert solution.evaluation.recompute_picoseconds == solution.bound_picoseconds == 3

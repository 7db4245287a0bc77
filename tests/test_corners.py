"""Corners of the hull around a budget, corners that are trimmed to it, and the largest values."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from random_problems import problems

from gcpass._evaluate import Evaluator
from gcpass._problem import Op, Phase, Problem, Storage
from gcpass._solvers import _corners, _local
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull
from gcpass._solvers._trim import trimmed

TIMES = (5, 4, 3, 2, 1)  # of values of 100 bytes each, all read by the backward


def unlike_values() -> Problem:
    return values(TIMES)


def values(times: Sequence[int]) -> Problem:
    """x -> v0, v1, ...: any of them can be recomputed, each for its own time.

    The backward reads them one after another; the peak is at its first op, which reads none.
    """
    ops = [Op("x", "input", Phase.INPUT, (), (0,))]
    sizes = [8]

    def add(
        name: str, phase: Phase, reads: tuple[int, ...], nbytes: int, time: int, workspace: int = 0
    ) -> int:
        index = len(ops)
        ops.append(Op(name, name[0], phase, reads, (index,), time, workspace_nbytes=workspace))
        sizes.append(nbytes)
        return index

    values = [add(f"v{i}", Phase.FORWARD, (0,), 100, time) for i, time in enumerate(times)]
    gradient = add("g", Phase.BACKWARD, (0,), 8, 1, workspace=1000)
    for value in reversed(values):
        gradient = add(f"g{value}", Phase.BACKWARD, (gradient, value), 8, 1)
    storages = tuple(Storage(nbytes, op, op) for op, nbytes in enumerate(sizes))
    return Problem(tuple(ops), storages, (), (gradient,))


@pytest.fixture
def two_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is a large one: only the ends of its hull are known beforehand."""
    monkeypatch.setattr(_corners, "_OPS", 0)


@pytest.mark.usefixtures("two_corners")
def test_corners_lead_to_the_edge_on_which_the_budget_lies() -> None:
    evaluator = Evaluator(unlike_values())
    high = _corners.unconstrained(evaluator)[1].peak_nbytes
    for dropped in (1, 2, 3):
        budget = high - 100 * dropped
        found = _corners._around(evaluator, budget)
        best = min(e.overhead_picoseconds for _, e in found if e.peak_nbytes <= budget)
        assert best == sum(sorted(TIMES)[:dropped])


@pytest.mark.usefixtures("two_corners")
def test_corners_around_a_budget_do_not_depend_on_budgets_before_it() -> None:
    evaluator, fresh = Evaluator(unlike_values()), Evaluator(unlike_values())
    high = _corners.unconstrained(evaluator)[1].peak_nbytes
    for dropped in (1, 2, 3):
        _corners._around(evaluator, high - 100 * dropped)
    again = _corners._around(evaluator, high - 200)
    assert [kept for kept, _ in again] == [k for k, _ in _corners._around(fresh, high - 200)]


def test_what_is_split_of_a_copy_is_not_of_the_hull() -> None:
    problem = unlike_values()
    hull = Hull(CutNetwork(problem, problem.forward_range, ()))
    ends = list(hull.corners)
    other = hull.copy()
    other.spread(10)
    assert len(other.corners) > 2
    assert hull.corners == ends
    assert not hull.is_edge(0)


@settings(deadline=None)
@given(problems(most=9), st.fractions(0, 5, max_denominator=7))
def test_a_side_is_known_by_its_price_alone(problem: Problem, price: Fraction) -> None:
    """So that what was cut between two sides once is what would be cut between any other two."""
    network = CutNetwork(problem, problem.forward_range, ())
    side = network.side_between(price, network.fastest_side(), network.smallest_side())
    fresh = CutNetwork(problem, problem.forward_range, ())
    assert network.choice(side) == fresh.cut(price)


def test_a_plan_is_trimmed_of_what_costs_least_for_what_it_frees() -> None:
    evaluator = Evaluator(unlike_values())
    fastest = _corners.unconstrained(evaluator)
    budget = fastest[1].peak_nbytes - 200
    (kept, evaluation), left = trimmed(evaluator, fastest, budget, 100)
    assert evaluation.peak_nbytes <= budget
    assert evaluation.overhead_picoseconds == sum(sorted(TIMES)[:2])
    assert left == 100 - len(fastest[0]) - (len(fastest[0]) - 1)
    assert trimmed(evaluator, fastest, budget, 2) == (fastest, 2)
    assert kept < fastest[0]


def test_of_values_alike_several_go_at_once() -> None:
    evaluator = Evaluator(values((3,) * 30 + (1000,)))
    fastest = _corners.unconstrained(evaluator)
    (kept, evaluation), left = trimmed(evaluator, fastest, fastest[1].peak_nbytes - 1900, 45)
    assert sorted(fastest[0] - kept) == list(range(1, 20))  # of the first layers
    assert evaluation.overhead_picoseconds == 3 * 19
    assert left > 0  # forty values are tried at once: there was one step


def test_of_a_medium_problem_the_largest_values_are_changed() -> None:
    problem = unlike_values()
    assert set(_local._largest(problem, 100, partly=False)) == {1, 2, 3, 4, 5}
    assert _local._largest(problem, 4, partly=True) == []  # a large one
    few = _local._FEW
    wide = Problem(
        (
            Op("x", "input", Phase.INPUT, (), (0,)),
            *(Op(f"v{i}", "v", Phase.FORWARD, (0,), (i,), 1) for i in range(1, 2 * few)),
            Op("g", "g", Phase.BACKWARD, tuple(range(1, 2 * few)), (2 * few,), 1),
        ),
        tuple(Storage(op, op, op) for op in range(2 * few + 1)),
        (),
        (2 * few,),
    )
    assert _local._largest(wide, few, partly=False) == []
    assert _local._largest(wide, few, partly=True) == list(range(2 * few - 1, few - 1, -1))

"""The search among plans that Inductor counts, and what it learns, on counts made up for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator
from gcpass._problem import Op, Phase, Problem, Storage
from gcpass.fx import _verify
from gcpass.fx._correction import beyond, corrected

UNCONSTRAINED, FLOOR = 1000, 200


def search(budget: int, counted: Callable[[int], int]) -> list[Any]:
    """The plans tried: a planner whose plans fill their target, and what Inductor makes of it."""

    def attempt(target: int, on_infeasible: str) -> Any:
        if target < FLOOR:
            raise InfeasibleBudget("too small", budget_bytes=target, floor_bytes=FLOOR)
        peak = min(target, UNCONSTRAINED)
        evaluation = SimpleNamespace(peak_nbytes=peak, recompute_picoseconds=UNCONSTRAINED - peak)
        planned = SimpleNamespace(evaluation=evaluation)
        return SimpleNamespace(planned=planned, peak_bytes=counted(peak))

    return _verify._search(attempt, budget)


@pytest.mark.parametrize(
    "counted",
    [
        lambda peak: peak,
        lambda peak: peak + 60,
        lambda peak: int(peak * 1.2),
        lambda peak: int(peak * 0.8),
        lambda peak: 700 - peak // 4 if peak > 500 else peak + 20,  # a smaller plan can be larger
    ],
    ids=["exact", "more", "a fifth more", "a fifth less", "not monotone"],
)
@pytest.mark.parametrize("budget", [900, 600, 400])
def test_some_plan_fits_and_leaves_little_unused(
    budget: int, counted: Callable[[int], int]
) -> None:
    tried = search(budget, counted)
    assert len(tried) <= _verify.ROUNDS
    best = max(c.peak_bytes for c in tried if c.peak_bytes <= budget)
    untouched = any(not c.planned.evaluation.recompute_picoseconds for c in tried)
    assert untouched or best >= 0.85 * budget


def test_an_exact_planner_is_asked_once() -> None:
    assert len(search(600, lambda peak: peak)) == 1


def test_below_the_floor_nothing_is_tried_twice() -> None:
    assert not search(100, lambda peak: peak)
    peaks = [c.planned.evaluation.peak_nbytes for c in search(210, lambda peak: peak + 60)]
    assert peaks == [210, FLOOR]


def test_a_target_below_the_floor_ends_nothing() -> None:
    tried = search(250, lambda peak: peak + 60 if peak > 230 else peak)
    assert any(c.peak_bytes <= 250 for c in tried)


# -- what people place by hand --------------------------------------------------------------------


def by_hand(tried: dict[int, int], plans: list[tuple[int, int, int]]) -> list[int]:
    """Times of the manual policies' plans that are counted for a budget of 100 bytes.

    Args:
        tried: peak by Inductor's count -> time, of the solver's plans.
        plans: of the policies: time, planned peak, counted peak.
    """
    counts: dict[int, int] = {}

    class Attempt:
        def by_hand(self) -> Any:
            for time, peak, counted in plans:
                counts[time] = counted
                evaluation = SimpleNamespace(peak_nbytes=peak, overhead_picoseconds=time)
                yield SimpleNamespace(evaluation=evaluation)

        def count(self, planned: Any) -> Any:
            return checked(planned.evaluation.overhead_picoseconds)

    def checked(time: int) -> Any:
        planned = SimpleNamespace(evaluation=SimpleNamespace(overhead_picoseconds=time))
        return SimpleNamespace(planned=planned, peak_bytes=counts[time])

    counts |= {time: peak for peak, time in tried.items()}
    solvers: Any = [checked(time) for time in tried.values()]
    found = _verify._by_hand(Attempt(), solvers, 100)  # pyright: ignore[reportArgumentType]
    return [c.planned.evaluation.overhead_picoseconds for c in found]


@pytest.mark.parametrize(
    ("tried", "plans", "counted"),
    [
        ({90: 5}, [(7, 80, 80), (6, 90, 90)], []),  # slower than what fits
        ({90: 5}, [(4, 103, 99), (3, 102, 101), (2, 105, 90)], [3, 4]),  # 105 is far beyond
        ({110: 5}, [(7, 80, 80), (6, 90, 90)], [6]),  # nothing fits yet
        ({}, [], []),
    ],
    ids=["slower", "near the budget", "nothing fits", "no policy keeps to the rules"],
)
def test_manual_policies_are_counted_where_they_are_faster(
    tried: dict[int, int], plans: list[tuple[int, int, int]], counted: list[int]
) -> None:
    assert by_hand(tried, plans) == counted


# -- what a count says of a problem ----------------------------------------------------------------


def counted_problem() -> Problem:
    """x -> a -> loss; the backward is g = grad(a), then h = grad(x)."""
    ops = (
        Op("x", "input", Phase.INPUT, (), (0,)),
        Op("a", "aten.mm", Phase.FORWARD, (0,), (1,), picoseconds=1),
        Op("g", "aten.mm", Phase.BACKWARD, (1,), (2,), picoseconds=1),
        Op("h", "aten.mm", Phase.BACKWARD, (2,), (3,), picoseconds=1),
    )
    sizes = (10, 100, 100, 10)
    storages = tuple(Storage(size, op, op) for op, size in enumerate(sizes))
    return Problem(ops, storages, (), (3,), "inductor")


def test_a_corrected_problem_predicts_what_was_counted() -> None:
    evaluator = Evaluator(counted_problem())
    kept = frozenset({1})
    assert evaluator.evaluate(kept).peak_nbytes == 200
    known = beyond(evaluator, kept, [(("a",), 500), (("g", "unknown"), 230), (("h",), 90), ((), 9)])
    assert known == {2: 30}
    problem = corrected(evaluator.problem, known)
    assert Evaluator(problem).evaluate(kept).peak_nbytes == 230
    assert beyond(Evaluator(problem), kept, [(("g",), 230)]) == {}

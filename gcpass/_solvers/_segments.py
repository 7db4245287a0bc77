"""The peak-constrained plan: cut inside, boundaries across, the evaluator as the judge.

Boundaries i_1 < i_2 < ... (`find_boundaries`) split the forward into segments. What crosses a
boundary is kept, so segments are independent but for the bytes they hold. For a segment s, cuts at
several prices of memory give options o (`SegmentTable`), each with

    kept(s, o)     bytes it leaves alive until its own backward
    own(s, o)      its peak, forward or backward, with the gradients and all else that the
                   backward itself holds at that time
    time(s, o)     what it recomputes

and a choice of segments and options runs within a budget B if, for every segment,

    sum of kept over earlier segments  +  own(s, o)  <=  B,

for when a segment's backward runs, all later ones are over. Dynamic programming over boundaries,
from the first to the last, finds the least total time (`gcpass._solvers._dynamic`).

The model counts a boundary value as kept even where nothing reads it; the evaluator, which
judges the result, does not. So the bound handed to the dynamic program is searched for: the
largest one whose plan *evaluates* to a peak within the budget.
"""

from __future__ import annotations

from gcpass._evaluate import Evaluator
from gcpass._solvers._bound import certified
from gcpass._solvers._corners import between_corners, corners, unconstrained, unhurried
from gcpass._solvers._dynamic import fastest_within, smallest_peak
from gcpass._solvers._local import Neighbourhood
from gcpass._solvers._polish import polish
from gcpass._solvers._solution import Found, Solution, Status, badness, unbeaten
from gcpass._solvers._table import table_of

_ROUNDS = 7  # searches for the bound that uses the budget up
_STEPS, _STEP = 8, 200  # bounds tried for the smallest peak, and how much larger each is
_LARGE = 10_000  # ops from which a sweep searches less
_SKETCHED = 6  # stretches that a sketch divides the range of peaks into
_HOPE = 0.85  # below this part of the modelled floor no search is worth its time


def solve(evaluator: Evaluator, budget_bytes: int | None) -> Solution:
    """The least recomputation found whose evaluated peak is within the budget.

    Args:
        evaluator: of the problem.
        budget_bytes: the bound on the peak, or None for none.

    Returns:
        The plan; if none within the budget is found, the one with the smallest peak. Without a
        budget, the one with the smallest peak of those that are hardly slower than the fastest.
    """
    if budget_bytes is None:
        return Solution(Status.FEASIBLE, *unhurried(evaluator))
    kept, evaluation = _find(evaluator, budget_bytes, _ROUNDS, polished=True)
    fits = evaluation.peak_nbytes <= budget_bytes
    return Solution(Status.FEASIBLE if fits else Status.INFEASIBLE, kept, evaluation)


def _find(
    evaluator: Evaluator,
    budget: int | None,
    rounds: int,
    *,
    polished: bool,
    thorough: bool = True,
) -> Found:
    """The best plan found for a budget: with ``rounds`` dynamic programs, and, if ``polished``,
    with the search of small problems, if ``thorough`` of medium ones too, and what is left of the
    budget spent."""
    fastest = unconstrained(evaluator)
    if budget is None or fastest[1].peak_nbytes <= budget:
        return fastest
    floor, _ = smallest_peak(table_of(evaluator))
    found = _search(evaluator, budget, rounds) if budget >= _HOPE * floor else None
    start = found or _smallest(evaluator)
    if not polished:
        return start
    starts = [start, *between_corners(evaluator, budget, thorough=thorough)]
    kept, evaluation = Neighbourhood(evaluator, partly=thorough).search(starts, budget)
    if evaluation.peak_nbytes <= budget:
        kept, evaluation = polish(evaluator, kept, evaluation, budget)
    return kept, evaluation


def sweep(evaluator: Evaluator, count: int) -> list[Solution]:
    """Up to ``count`` certified plans, from the fastest to the smallest, none beaten by another.

    Peaks are spread evenly between the two ends. Large problems are searched less at each.
    """
    ends = [_find(evaluator, budget, _ROUNDS, polished=True) for budget in (None, 1)]
    high, low = (evaluation.peak_nbytes for _, evaluation in ends)
    large = len(evaluator.problem.ops) > _LARGE
    found = list(ends)
    for i in range(1, count - 1):
        budget = high - (high - low) * i // (count - 1)
        rounds = 2 if large else _ROUNDS
        found.append(_find(evaluator, budget, rounds, polished=not large, thorough=False))
    solutions = [Solution(Status.FEASIBLE, kept, evaluation) for kept, evaluation in found]
    return [certified(evaluator, s, s.evaluation.peak_nbytes) for s in unbeaten(solutions)]


def sketch(evaluator: Evaluator, budget_bytes: int | None) -> list[Solution]:
    """A few plans with little search, fastest first: what a picture shows beside one plan.

    Args:
        evaluator: of the problem.
        budget_bytes: what the one plan was made for. Without a budget nothing but cuts of the whole
            forward is at hand, and no segment is looked at.
    """
    found = list(corners(evaluator))
    if budget_bytes is not None:
        _, kept = smallest_peak(table_of(evaluator))
        found.append((kept, evaluator.evaluate(kept)))
        high, low = found[0][1].peak_nbytes, found[-1][1].peak_nbytes
        count = 1 if len(evaluator.problem.ops) > _LARGE else _SKETCHED
        for i in range(1, count):
            found.append(_find(evaluator, high - (high - low) * i // count, 2, polished=False))
    return unbeaten(Solution(Status.FEASIBLE, *choice) for choice in found)


def spread(evaluator: Evaluator, count: int) -> list[Solution]:
    """Corners of the whole forward's hull, and plans at about ``count`` peaks, with little search.

    None is left out for being beaten by another in peak and time: it may hold fewer bytes.
    """
    found = [*corners(evaluator), _smallest(evaluator)]
    high, low = found[0][1].peak_nbytes, found[-1][1].peak_nbytes
    for i in range(1, count):
        budget = high - (high - low) * i // count
        searched = _search(evaluator, budget, 2)
        if searched is not None:
            found.append(polish(evaluator, *searched, budget))
    return [Solution(Status.FEASIBLE, *choice) for choice in found]


def _search(evaluator: Evaluator, budget: int, rounds: int) -> Found | None:
    """The best evaluated plan within the budget, over bounds handed to the dynamic program."""
    table = table_of(evaluator)
    best: Found | None = None
    low, high = 0, None
    bound = budget
    for _ in range(rounds):
        kept = fastest_within(table, bound)
        if kept is None:
            low = bound
            bound = (bound + high) // 2 if high is not None else bound + max(bound // 8, 1)
            continue
        evaluation = evaluator.evaluate(kept)
        if evaluation.peak_nbytes <= budget:
            if best is None or badness(evaluation, budget) < badness(best[1], budget):
                best = kept, evaluation
            low = max(low, bound)
            slack = budget - evaluation.peak_nbytes
            if slack * 200 < budget:
                break
            bound = bound + slack if high is None else (bound + high) // 2
        else:
            high = bound
            excess = evaluation.peak_nbytes - budget
            bound = max(bound - excess, (low + bound) // 2) if low else bound - excess
        if high is not None and high - low < max(budget // 500, 1):
            break
    return best


def _smallest(evaluator: Evaluator) -> Found:
    """The smallest evaluated peak found, to a thousandth, and the least time at that peak."""
    table = table_of(evaluator)
    bound, kept = smallest_peak(table)
    candidates = [kept]
    for step in range(_STEPS):  # a plan may evaluate to less than the model's bound
        plan = fastest_within(table, bound + bound * step // _STEP)
        candidates += [plan] if plan is not None else []
    evaluated = [(kept, evaluator.evaluate(kept)) for kept in candidates]
    evaluated += corners(evaluator)
    floor = min(e.peak_nbytes for _, e in evaluated) * 1001 // 1000
    kept, evaluation = min(
        (c for c in evaluated if c[1].peak_nbytes <= floor),
        key=lambda c: c[1].overhead_picoseconds,
    )
    return polish(evaluator, kept, evaluation, floor)

"""Plans that one cut of the whole forward gives, and plans between two of them.

The corners of the lower hull of (bytes kept, time) are the best plans at their bytes; they say
nothing of the peak, but at high budgets little else decides. Between two corners the layers of a
deep model flip all at once. Taking the smaller corner's choice for what comes before some position,
and the faster one's for what comes after, flips them one by one: early layers are recomputed first,
for their backward comes last, when little else is alive. Or by what each part frees of the peak
(`gcpass._solvers._parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from gcpass._evaluate import Evaluator
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull
from gcpass._solvers._parts import bisect, exchanged
from gcpass._solvers._solution import Found
from gcpass._solvers._trim import trimmed

_CORNERS, _OPS = 40, 20_000  # corners spread over the hull at most, and ops cut for them
_SPLITS = 6  # cuts at most on the way to the edge on which a budget lies
_STRIDES = (1, 3, 9)  # how far apart two corners are that a plan mixes
_TRIMMED = 300_000  # ops evaluated to trim corners that are over the budget
_NEAREST = 4  # how many of them
_UNFELT = 200  # a step longer by one part in so many is as good as one that is not
_EVALUATED = 100_000  # ops evaluated between two corners


@lru_cache(maxsize=4)
def _network(evaluator: Evaluator) -> CutNetwork:
    return CutNetwork(evaluator.problem, evaluator.problem.forward_range, ())


@lru_cache(maxsize=4)
def unconstrained(evaluator: Evaluator) -> Found:
    """The fastest plan; of those, the one that keeps the fewest bytes."""
    return _evaluated(evaluator, _network(evaluator).fastest().kept)


def unhurried(evaluator: Evaluator) -> Found:
    """Under Inductor the smallest peak at next to no time; else the fastest plan.

    Where values that fuse are recomputed for nearly what keeping them takes, corners that differ by
    a fourth in their peaks differ by less in time than any measurement shows.
    """
    fastest, problem = unconstrained(evaluator), evaluator.problem
    if problem.codegen != "inductor":
        return fastest
    limit = fastest[1].step_picoseconds(problem) * (_UNFELT + 1) // _UNFELT
    near = (found for found in corners(evaluator) if found[1].step_picoseconds(problem) <= limit)
    return min(near, key=lambda found: found[1].peak_nbytes, default=fastest)


def corners(evaluator: Evaluator) -> list[Found]:
    """Corners spread over the hull, fastest first; of a large problem, only the two ends."""
    return [_evaluated(evaluator, choice.kept) for choice in _spread(evaluator).corners]


def between_corners(evaluator: Evaluator, budget: int, *, thorough: bool) -> list[Found]:
    """Corners, those around the budget among them, and for two near each other the plans between
    them that just fit; if ``thorough``, corners over the budget that are trimmed, too."""
    found = _around(evaluator, budget)
    mixed: list[Found] = []
    left = _TRIMMED // len(evaluator.problem.ops) if thorough else 0
    exceeding = [corner for corner in found if corner[1].peak_nbytes > budget]
    for corner in sorted(exceeding, key=lambda corner: corner[1].peak_nbytes)[:_NEAREST]:
        plan, left = trimmed(evaluator, corner, budget, left)
        mixed.append(plan)
    evaluations = _EVALUATED // len(evaluator.problem.ops)
    for stride in _STRIDES:
        for fast, small in pairwise(found[::stride]):
            if small[1].peak_nbytes <= budget < fast[1].peak_nbytes:
                mixed += _between(evaluator, fast[0], small[0], budget, evaluations)
                mixed += exchanged(evaluator, fast, small, budget, evaluations)
    return found + mixed


def _around(evaluator: Evaluator, budget: int) -> list[Found]:
    """Corners of the hull down to the edge on which the peak falls below the budget."""
    hull = _spread(evaluator).copy()
    for _ in range(_SPLITS):
        peaks = [_evaluated(evaluator, c.kept)[1].peak_nbytes for c in hull.corners]
        edge = _edge_to_split(hull, peaks, budget)
        if edge is None:
            break
        hull.split(edge)
    return [_evaluated(evaluator, choice.kept) for choice in hull.corners]


def _edge_to_split(hull: Hull, peaks: Sequence[int], budget: int) -> int | None:
    """Where the peak passes the budget; if no corner fits, beside the one of the smallest peak."""
    for i, (fast, small) in enumerate(pairwise(peaks)):
        if small <= budget < fast:
            return None if hull.is_edge(i) else i
    least = peaks.index(min(peaks))
    beside = (i for i in (least, least - 1) if 0 <= i < len(peaks) - 1 and not hull.is_edge(i))
    return next(beside, None)


@lru_cache(maxsize=4)
def _spread(evaluator: Evaluator) -> Hull:
    hull = Hull(_network(evaluator))
    hull.spread(min(_CORNERS, _OPS // max(len(evaluator.problem.forward_range), 1)))
    return hull


def _evaluated(evaluator: Evaluator, kept: frozenset[int]) -> Found:
    known = _evaluations(evaluator)
    if kept not in known:
        known[kept] = kept, evaluator.evaluate(kept)
    return known[kept]


@lru_cache(maxsize=4)
def _evaluations(_: Evaluator) -> dict[frozenset[int], Found]:
    """Of the corners found so far, by what they keep."""
    return {}


def _between(
    evaluator: Evaluator,
    fast: frozenset[int],
    small: frozenset[int],
    budget: int,
    evaluations: int,
) -> list[Found]:
    """Bisect the position up to which ``small`` decides: as early as the budget allows."""
    forward = evaluator.problem.forward_range

    def mixed(position: int) -> frozenset[int]:
        return frozenset(k for k in small if k < position) | {k for k in fast if k >= position}

    places = range(forward.start, forward.stop + 1)
    return bisect(evaluator, mixed, places, budget, evaluations)

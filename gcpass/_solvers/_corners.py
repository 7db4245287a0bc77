"""Plans that one cut of the whole forward gives, and plans between two of them.

The corners of the lower hull of (bytes kept, time) are the best plans at their bytes; they say
nothing of the peak, but at high budgets little else decides. Between two corners the layers of a
deep model flip all at once. Taking the smaller corner's choice for what comes before some position,
and the faster one's for what comes after, flips them one by one: early layers are recomputed first,
for their backward comes last, when little else is alive. Or by what each part frees of the peak
(`gcpass._solvers._parts`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from gcpass._evaluate import Evaluation, Evaluator
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import hull
from gcpass._solvers._parts import bisect, exchanged
from gcpass._solvers._solution import Found

_CORNERS, _OPS = 40, 20_000  # corners at most, and ops cut for them
_STRIDES = (1, 3, 9)  # how far apart two corners are that a plan mixes
_NEAR = 100  # a corner over the budget by less than one in so many bytes is trimmed
_UNFELT = 200  # a step longer by one part in so many is as good as one that is not
_EVALUATED = 100_000  # ops evaluated between two corners


@lru_cache(maxsize=4)
def _network(evaluator: Evaluator) -> CutNetwork:
    return CutNetwork(evaluator.problem, evaluator.problem.forward_range, ())


@lru_cache(maxsize=4)
def unconstrained(evaluator: Evaluator) -> Found:
    """The fastest plan; of those, the one that keeps the fewest bytes."""
    kept = _network(evaluator).fastest().kept
    return kept, evaluator.evaluate(kept)


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


@lru_cache(maxsize=4)
def corners(evaluator: Evaluator) -> list[Found]:
    """Corners of the hull, fastest first; of a large problem, only the first."""
    count = min(_CORNERS, _OPS // max(len(evaluator.problem.forward_range), 1))
    if count < 3:
        return [unconstrained(evaluator)]
    found = hull(_network(evaluator), count)
    return [(choice.kept, evaluator.evaluate(choice.kept)) for choice in found]


def between_corners(evaluator: Evaluator, budget: int) -> list[Found]:
    """The corners, and for each two near each other the plans between them that just fit."""
    found = list(corners(evaluator))
    for corner in corners(evaluator):
        if 0 < corner[1].peak_nbytes - budget <= budget // _NEAR:
            found.append(_trimmed(evaluator, corner, budget))
    for stride in _STRIDES:
        for fast, small in pairwise(corners(evaluator)[::stride]):
            if small[1].peak_nbytes <= budget < fast[1].peak_nbytes:
                found += _between(evaluator, fast[0], small[0], budget)
                evaluations = _EVALUATED // len(evaluator.problem.ops)
                found += exchanged(evaluator, fast, small, budget, evaluations)
    return found


def _trimmed(evaluator: Evaluator, corner: Found, budget: int) -> Found:
    """A plan that is a little over the budget, less the values that cost least for what they free.

    As many as a bounded number of evaluations finds; it may still be over the budget.
    """
    kept, evaluation = corner
    left = _EVALUATED // len(evaluator.problem.ops)
    while kept and evaluation.peak_nbytes > budget and left >= len(kept):
        left -= len(kept)
        fewer = [kept - {op} for op in kept]
        found = [(k, evaluator.evaluate(k)) for k in fewer if not evaluator.violations(k)]

        def worth(other: Found, now: Evaluation = evaluation) -> float:
            freed = now.peak_nbytes - max(other[1].peak_nbytes, budget)
            return freed / (1 + other[1].overhead_picoseconds - now.overhead_picoseconds)

        best = max(found, key=worth, default=corner)
        if best[1].peak_nbytes >= evaluation.peak_nbytes:
            break
        kept, evaluation = best
    return kept, evaluation


def _between(
    evaluator: Evaluator, fast: frozenset[int], small: frozenset[int], budget: int
) -> list[Found]:
    """Bisect the position up to which ``small`` decides: as early as the budget allows."""
    forward = evaluator.problem.forward_range

    def mixed(position: int) -> frozenset[int]:
        return frozenset(k for k in small if k < position) | {k for k in fast if k >= position}

    places = range(forward.start, forward.stop + 1)
    return bisect(evaluator, mixed, places, budget, _EVALUATED // len(evaluator.problem.ops))

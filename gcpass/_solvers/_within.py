"""What to save of one part of the forward in so many bytes: a hull of that part alone.

Only bytes of the part have a price, and only its stretch of the forward is cut: what comes before
it is there. Corners of the hull are split until the budget lies on an edge of it. Layers that are
alike would all flip at one corner; so a byte weighs a little more the earlier it is, and they flip
one by one, the early ones first.
"""

from __future__ import annotations

from collections.abc import Collection

from gcpass._problem import Problem
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull

_LEAN = 100  # the first byte weighs more than the last by one part in so many


def made_in(problem: Problem, ops: Collection[int]) -> list[int]:
    """The ops that can be kept, and take memory, of what ``ops`` make."""
    return [h for h in problem.kept_storage if problem.maker(h) in ops and problem.keep_nbytes(h)]


def saved_nbytes(problem: Problem, kept: Collection[int]) -> int:
    return sum(map(problem.keep_nbytes, kept))


def fastest(problem: Problem) -> frozenset[int]:
    """What the fastest plan keeps."""
    return CutNetwork(problem, problem.forward_range, ()).fastest().kept


def within(
    problem: Problem, ops: Collection[int], nbytes: int, wanted: Collection[int]
) -> frozenset[int]:
    """What to keep of what a part of the forward makes, for the least time.

    Args:
        problem: the problem.
        ops: the part; not empty.
        nbytes: how much of what they make may be kept.
        wanted: what the fastest plan keeps.

    Returns:
        Values that ``ops`` make, of at most ``nbytes``; the fewest bytes where that is too little.
    """
    own = made_in(problem, ops)
    earlier = {op: place for place, op in enumerate(reversed(own))}

    def weigh(op: int) -> int:
        place = earlier.get(op)
        return 0 if place is None else problem.keep_nbytes(op) * (_LEAN * len(own) + place)

    span = range(min(ops), max((*ops, *own)) + 1)
    network = CutNetwork(problem, span, (), weigh, earlier.keys() & wanted)
    hull = Hull(network)
    while True:
        kept = [earlier.keys() & corner.kept for corner in hull.corners]
        fits = (i for i, k in enumerate(kept) if saved_nbytes(problem, k) <= nbytes)
        best = next(fits, len(kept) - 1)
        if best == 0 or hull.is_edge(best - 1):
            return frozenset(kept[best])
        hull.split(best - 1)

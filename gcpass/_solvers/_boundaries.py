"""Where to stop a chain of recomputation: positions of the forward that few bytes cross.

A position p lies between two ops of the forward range. A value *crosses* p if it is produced
before p and something at or after p, that the backward may want recomputed, reads it. Keeping the
values that cross p makes the two sides independent: nothing after p ever recomputes anything
before it. Crossing values are found for any graph, not only for chains of layers: a U-Net's skips
cross every position between their two ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from gcpass._problem import Problem

_NEIGHBOURS = 3  # positions on either side that a boundary is compared with, at first
_GAP = 4  # times as far apart as if spread evenly, boundaries may stand


@dataclass(frozen=True, slots=True)
class Boundary:
    """A position and what crosses it.

    Attributes:
        position: the first op after it.
        crossing: holders of the storages that cross it.
        nbytes: their bytes.
    """

    position: int
    crossing: frozenset[int]
    nbytes: int


def find_boundaries(problem: Problem, limit: int) -> list[Boundary]:
    """Up to ``limit`` positions where locally the fewest bytes cross, in forward order.

    Where there are more, each is compared with more of its neighbours: so identical layers keep
    boundaries at the same places, and their segments stay identical too. Not with so many that a
    narrow place leaves none for long around it: then every other one is dropped.

    The two ends of the forward range, which nothing crosses, are not listed.
    """
    positions = list(_open_positions(problem))
    neighbours = _NEIGHBOURS
    found = _valleys(positions, neighbours)
    while len(found) > limit and neighbours < len(positions):
        neighbours *= 2
        wider = _valleys(positions, neighbours)
        if _widest_gap(positions, wider) > _GAP * len(positions) // limit:
            break
        found = wider
    return _spread(found, limit)


def _open_positions(problem: Problem) -> Iterator[Boundary]:
    """Every position where all that crosses can be kept; of equals, the first."""
    forward = problem.forward_range
    last_reader = problem.last_readers
    ends: dict[int, list[int]] = {}
    for storage, last in enumerate(last_reader):
        ends.setdefault(last, []).append(storage)
    crossing: set[int] = set()
    previous: frozenset[int] | None = None
    for position in forward[1:]:
        crossing.update(s for s in problem.produced[position - 1] if last_reader[s] >= 0)
        crossing.difference_update(ends.get(position - 1, ()))
        holders = {s: problem.storages[s].holder for s in crossing}
        if not crossing or not all(
            h in problem.kept_storage and h is not None and h < position for h in holders.values()
        ):
            continue
        found = frozenset(h for h in holders.values() if h is not None)
        if found != previous:
            yield Boundary(position, found, sum(problem.keep_nbytes(h) for h in found))
            previous = found


def _valleys(boundaries: list[Boundary], neighbours: int) -> list[Boundary]:
    """The positions that no fewer bytes cross than their neighbours on either side."""
    found = []
    for i, here in enumerate(boundaries):
        around = boundaries[max(i - neighbours, 0) : i + neighbours + 1]
        if all(here.nbytes <= other.nbytes for other in around):
            found.append(here)
    return found


def _widest_gap(positions: list[Boundary], found: list[Boundary]) -> int:
    """The most positions in a row without a boundary."""
    chosen = {b.position for b in found}
    places = [-1, *(i for i, p in enumerate(positions) if p.position in chosen), len(positions)]
    return max(b - a for a, b in pairwise(places))


def _spread(boundaries: list[Boundary], limit: int) -> list[Boundary]:
    """At most ``limit`` of them: of two neighbours, the one that fewer bytes cross."""
    while len(boundaries) > limit:
        pairs = [boundaries[i : i + 2] for i in range(0, len(boundaries), 2)]
        boundaries = [min(pair, key=lambda b: b.nbytes) for pair in pairs]
    return boundaries

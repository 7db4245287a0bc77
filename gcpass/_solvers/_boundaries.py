"""Where to stop a chain of recomputation: positions of the forward that few bytes cross.

A position p lies between two ops of the forward range. A value *crosses* p if it is produced
before p and something at or after p, that the backward may want recomputed, reads it. Keeping the
values that cross p makes the two sides independent: nothing after p ever recomputes anything
before it. Crossing values are found for any graph, not only for chains of layers: a U-Net's skips
cross every position between their two ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from gcpass._problem import Problem

_NEIGHBOURS = 3  # positions on either side that a boundary is compared with, at first
_STRETCH = 4  # the longest part of all positions that has no boundary: one in so many
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


@dataclass(frozen=True, slots=True)
class _Place:
    """A position and the bytes that cross it. (What crosses all of them may be all there is: a
    U-Net's skips. So it is listed only for those that are chosen.)"""

    position: int
    nbytes: int


def find_boundaries(problem: Problem, limit: int) -> list[Boundary]:
    """Up to ``limit`` positions where locally the fewest bytes cross, in forward order.

    Where there are more, each is compared with more of its neighbours: so identical layers keep
    boundaries at the same places, and their segments stay identical too. Not with so many that a
    narrow place leaves none for long around it: then every other one is dropped. A long stretch
    without any, where what crosses only grows or only shrinks (skips across the whole), is divided
    all the same.

    The two ends of the forward range, which nothing crosses, are not listed.
    """
    places = list(_open_places(problem))
    neighbours = _NEIGHBOURS
    found = _valleys(places, neighbours)
    while len(found) > limit and neighbours < len(places):
        neighbours *= 2
        wider = _valleys(places, neighbours)
        if _widest_gap(places, wider) > _GAP * len(places) // limit:
            break
        found = wider
    return list(_with_crossing(problem, _spread(_filled(places, found), limit)))


def _open_places(problem: Problem) -> Iterator[_Place]:
    """Every position where all that crosses can be kept; of equals, the first."""
    unlike: set[int] = set()  # what crosses here and not at the last position found, or there alone
    out_of_reach: set[int] = set()  # what crosses and has no holder yet that can be kept
    size = [0 if s in problem.output_storages else b.nbytes for s, b in enumerate(problem.storages)]
    count = nbytes = 0
    for position, born, dead in _moves(problem):
        unlike.symmetric_difference_update((*born, *dead))
        count += len(born) - len(dead)
        nbytes += sum(size[s] for s in born) - sum(size[s] for s in dead)
        out_of_reach.update(born)
        out_of_reach.difference_update(dead)
        out_of_reach = {s for s in out_of_reach if not _is_held(problem, s, position)}
        if count and unlike and not out_of_reach:
            yield _Place(position, nbytes)
            unlike = set()


def _moves(problem: Problem) -> Iterator[tuple[int, list[int], list[int]]]:
    """Every position inside the forward range, the storages that cross it first, and those that
    crossed the one before it last."""
    last_reader = problem.last_readers
    ends: dict[int, list[int]] = {}
    for position in problem.forward_range[1:]:
        born = [s for s in problem.produced[position - 1] if last_reader[s] >= position]
        for s in born:
            ends.setdefault(last_reader[s] + 1, []).append(s)
        yield position, born, ends.pop(position, [])


def _is_held(problem: Problem, storage: int, position: int) -> bool:
    """Whether a storage can be kept before ``position``."""
    holder = problem.storages[storage].holder
    return holder is not None and holder in problem.kept_storage and holder < position


def _with_crossing(problem: Problem, places: list[_Place]) -> Iterator[Boundary]:
    """The boundaries at some of the positions, with what crosses them."""
    chosen = {place.position: place.nbytes for place in places}
    crossing: set[int] = set()
    for position, born, dead in _moves(problem):
        crossing.update(born)
        crossing.difference_update(dead)
        if position in chosen:
            holders = (problem.storages[s].holder for s in crossing)
            yield Boundary(
                position, frozenset(h for h in holders if h is not None), chosen[position]
            )


def _valleys(places: list[_Place], neighbours: int) -> list[_Place]:
    """The positions that no fewer bytes cross than their neighbours on either side."""
    least = _least_around([place.nbytes for place in places], neighbours)
    return [place for place, fewest in zip(places, least, strict=True) if place.nbytes == fewest]


def _least_around(numbers: list[int], neighbours: int) -> list[int]:
    """For each number the least of it and its neighbours on either side, in one pass."""
    least: list[int] = []
    rising: deque[int] = deque()  # places in the window, each number larger than the one before it
    for ahead in range(len(numbers) + neighbours):
        if ahead < len(numbers):
            while rising and numbers[rising[-1]] >= numbers[ahead]:
                rising.pop()
            rising.append(ahead)
        here = ahead - neighbours
        if here >= 0:
            if rising[0] < here - neighbours:
                rising.popleft()
            least.append(numbers[rising[0]])
    return least


def _widest_gap(places: list[_Place], found: list[_Place]) -> int:
    """The most positions in a row without a boundary."""
    return max(end - begin for begin, end in _stretches(places, found))


def _stretches(places: list[_Place], found: list[_Place]) -> Iterator[tuple[int, int]]:
    """The places between which none is found, as indices of the two that bound them."""
    chosen = {place.position for place in found}
    ends = [-1, *(i for i, p in enumerate(places) if p.position in chosen), len(places)]
    return pairwise(ends)


def _filled(places: list[_Place], found: list[_Place]) -> list[_Place]:
    """The places found, and in every stretch of more than a fourth of all that has none of them
    about as many as divide it into pieces as long as there are pieces: the narrowest of each."""
    filled = list(found)
    for begin, end in _stretches(places, found):
        if end - begin <= max(len(places) // _STRETCH, 2 * _NEIGHBOURS):
            continue
        size = isqrt(end - begin)
        for first in range(begin + 1 + size // 2, end - size, size):
            filled.append(min(places[first : first + size], key=lambda place: place.nbytes))
    return sorted(filled, key=lambda place: place.position)


def _spread(places: list[_Place], limit: int) -> list[_Place]:
    """At most ``limit`` of them: of two neighbours, the one that fewer bytes cross."""
    while len(places) > limit:
        pairs = [places[i : i + 2] for i in range(0, len(places), 2)]
        places = [min(pair, key=lambda place: place.nbytes) for pair in pairs]
    return places

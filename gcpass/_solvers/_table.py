"""The options of every segment between two boundaries, identical segments solved once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from gcpass._evaluate import Evaluator
from gcpass._problem import Problem
from gcpass._solvers._boundaries import Boundary, find_boundaries
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull
from gcpass._solvers._signature import Signatures

MAX_BOUNDARIES = 176
_OPS_A_SEGMENT = 12  # the shortest segments are about this long, if there are enough ops
_FEW_BOUNDARIES = 48
_LONGEST = 3  # times the square root of their number: longer segments serve no budget
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 26, 32, 40, 50, 64)  # in boundaries


@dataclass(frozen=True, slots=True)
class Option:
    """One way to treat the segment from one boundary to ``stop``.

    Attributes:
        stop: index of the boundary it ends at.
        kept: the ops it keeps, those that cross its end included.
        kept_nbytes: bytes it adds to what is kept.
        own_nbytes: its own peak (see `gcpass._evaluate.SegmentCost`).
        picoseconds: what it recomputes, and writing and reading what it keeps.
    """

    stop: int
    kept: frozenset[int]
    kept_nbytes: int
    own_nbytes: int
    picoseconds: int


@dataclass(frozen=True, slots=True)
class OptionArrays:
    """The options of one segment: ``first`` is the index of the first among its start's options."""

    stop: int
    first: int
    kept_nbytes: np.ndarray
    own_nbytes: np.ndarray
    picoseconds: np.ndarray


@dataclass(frozen=True, slots=True)
class _Way:
    """An option of every segment of one kind, counted from the segment's start."""

    kept: tuple[int, ...]
    kept_nbytes: int
    forward_nbytes: int
    backward_nbytes: int  # beyond the base at the segment's first step
    picoseconds: int


class SegmentTable:
    """All segments of one problem; computed when first asked for.

    Attributes:
        boundaries: the two ends of the forward and the boundaries between.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.problem: Problem = evaluator.problem
        forward = self.problem.forward_range
        limit = min(max(len(forward) // _OPS_A_SEGMENT, _FEW_BOUNDARIES), MAX_BOUNDARIES)
        inner = find_boundaries(self.problem, limit)
        self.boundaries = [
            Boundary(forward.start, frozenset(), 0),
            *inner,
            Boundary(forward.stop, frozenset(), 0),
        ]
        self._options: dict[int, list[Option]] = {}
        self._arrays: dict[int, list[OptionArrays]] = {}
        self._signatures = Signatures(evaluator)
        self._solved: dict[object, list[_Way]] = {}

    def options(self, start: int) -> list[Option]:
        """Every option of every segment that starts at boundary ``start``."""
        if start not in self._options:
            count = len(self.boundaries)
            longest = _LONGEST * math.isqrt(count)
            stops = {start + n for n in _LENGTHS if n <= longest and start + n < count}
            if start == 0:
                stops.add(count - 1)  # the whole forward, without a boundary
            self._options[start] = [
                option for stop in sorted(stops) for option in self._segment(start, stop)
            ]
        return self._options[start]

    def option_arrays(self, start: int) -> list[OptionArrays]:
        """The same as arrays, one entry for each segment."""
        if start not in self._arrays:
            found, first = [], 0
            for stop, group in groupby(self.options(start), key=lambda option: option.stop):
                options = list(group)
                columns = (
                    np.array([getattr(option, name) for option in options], np.int64)
                    for name in ("kept_nbytes", "own_nbytes", "picoseconds")
                )
                found.append(OptionArrays(stop, first, *columns))
                first += len(options)
            self._arrays[start] = found
        return self._arrays[start]

    def _segment(self, start: int, stop: int) -> list[Option]:
        first, last = self.boundaries[start], self.boundaries[stop]
        ops = range(first.position, last.position)
        given = frozenset(h for h in last.crossing if h in ops)
        window = self._signatures.window(ops, given)
        base = self._evaluator.backward.steps[window[0]].base_before if window else 0
        key = self._signatures.key(ops, given, window)
        if key not in self._solved:
            self._solved[key] = self._solve(ops, given, base, stop - start)
        return [
            Option(
                stop,
                frozenset(ops.start + k for k in way.kept),
                way.kept_nbytes,
                max(way.forward_nbytes, base + way.backward_nbytes),
                way.picoseconds,
            )
            for way in self._solved[key]
        ]

    def _solve(self, ops: range, given: frozenset[int], base: int, length: int) -> list[_Way]:
        """The corners of the segment's hull, evaluated."""
        network = CutNetwork(self.problem, ops, given)
        interior = [op for op in network.demanded if op not in given]
        given_nbytes = sum(self.problem.keep_nbytes(h) for h in given)
        ways = []
        corners = _corners(length)
        for choice in Hull(network).spread(corners) if corners > 1 else [network.smallest()]:
            kept = choice.kept | given
            cost = self._evaluator.segment(ops, kept, interior)
            ways.append(
                _Way(
                    tuple(k - ops.start for k in kept),
                    choice.nbytes + given_nbytes,
                    cost.forward_nbytes,
                    cost.backward_nbytes - base,
                    choice.picoseconds,
                )
            )
        return ways


def _corners(length: int) -> int:
    """Corners wanted of a segment's hull: long segments serve low budgets, and need few."""
    return 6 if length <= 3 else 4 if length <= 8 else 1


@lru_cache(maxsize=4)
def table_of(evaluator: Evaluator) -> SegmentTable:
    """The table of an evaluator; asked again, the same one."""
    return SegmentTable(evaluator)

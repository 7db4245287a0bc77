"""Dynamic programming over boundaries: which segments, and which option of each.

A *label* at a boundary is one way to treat everything before it: the bytes it leaves kept, and its
cost. An option of the segment from there to a later boundary makes a label there:

    kept' = kept + kept(s, o)
    cost' = cost + time(s, o)            if kept + own(s, o) <= B     (`fastest_within`)
    cost' = max(cost, kept + own(s, o))                               (`smallest_peak`)

Of two labels at one boundary, one with no fewer bytes and no lower cost can be dropped: whatever
follows it can follow the other. What is left is a falling staircase, thinned if it is long. All
labels of a boundary are handled at once, as arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gcpass._solvers._table import OptionArrays, SegmentTable

_LABELS = 96  # kept at each boundary

_Array = np.ndarray
_Cost = Callable[[_Array, _Array, OptionArrays], _Array]
_NEVER = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels at one boundary, and for each where it came from."""

    kept: _Array
    cost: _Array
    start: _Array  # boundary of the label it extends
    index: _Array  # of that label
    option: _Array  # index among the options of that boundary

    @classmethod
    def joined(cls, parts: list[_Labels]) -> _Labels:
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__))

    def frontier(self) -> _Labels:
        """Those that no other beats in both bytes and cost, by bytes."""
        which = _staircase(self.kept, self.cost)
        return _Labels(*(getattr(self, name)[which] for name in self.__slots__))


def _staircase(kept: _Array, cost: _Array) -> _Array:
    """Indices, by bytes, of labels that no other beats in both bytes and cost; thinned."""
    order = np.lexsort((cost, kept))
    falling = cost[order]
    falls = falling[1:] < np.minimum.accumulate(falling)[:-1]
    order = order[np.concatenate([[True], falls])]
    if len(order) <= _LABELS:
        return order
    steps = np.linspace(0, len(order) - 1, _LABELS)
    return order[np.round(steps).astype(np.int64)]


def fastest_within(table: SegmentTable, bound: int) -> frozenset[int] | None:
    """What to keep for the least time with every segment within ``bound``; None if none is."""

    def cost(kept: _Array, so_far: _Array, options: OptionArrays) -> _Array:
        within = kept + options.own_nbytes[:, None] <= bound
        return np.where(within, so_far + options.picoseconds[:, None], _NEVER)

    best = _sweep(table, cost)
    return None if best is None else best[1]


@lru_cache(maxsize=4)
def smallest_peak(table: SegmentTable) -> tuple[int, frozenset[int]]:
    """The smallest bound that some choice of segments and options meets, and what it keeps."""

    def cost(kept: _Array, so_far: _Array, options: OptionArrays) -> _Array:
        return np.maximum(so_far, kept + options.own_nbytes[:, None])

    best = _sweep(table, cost)
    assert best is not None  # one segment of everything is always a choice
    return best


def _sweep(table: SegmentTable, cost: _Cost) -> tuple[int, frozenset[int]] | None:
    """The lowest cost at the last boundary, and what its choices keep."""
    count = len(table.boundaries)
    zero = np.zeros(1, np.int64)
    coming: list[list[_Labels]] = [[] for _ in range(count)]
    coming[0] = [_Labels(zero, zero, zero, zero, zero)]
    settled: list[_Labels | None] = [None] * count
    for start in range(count):
        if not coming[start]:
            continue
        labels = settled[start] = _Labels.joined(coming[start]).frontier()
        for options in table.option_arrays(start):
            total = cost(labels.kept, labels.cost, options)
            which, index = np.nonzero(total < _NEVER)
            if not len(which):
                continue
            kept, spent = labels.kept[index] + options.kept_nbytes[which], total[which, index]
            best = _staircase(kept, spent)
            coming[options.stop].append(
                _Labels(
                    kept[best],
                    spent[best],
                    np.full(len(best), start),
                    index[best],
                    options.first + which[best],
                )
            )
    last = settled[-1]
    if last is None:
        return None
    best = int(np.argmin(last.cost))
    return int(last.cost[best]), _trace(table, settled, best)


def _trace(table: SegmentTable, settled: list[_Labels | None], index: int) -> frozenset[int]:
    """Everything that the choices behind a label of the last boundary keep."""
    kept: set[int] = set()
    at = len(settled) - 1
    while at > 0:
        labels = settled[at]
        assert labels is not None
        start = int(labels.start[index])
        kept |= table.options(start)[int(labels.option[index])].kept
        at, index = start, int(labels.index[index])
    return frozenset(kept)

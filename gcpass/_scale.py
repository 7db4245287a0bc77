"""The problem at a batch between two that were traced, made without tracing.

Between batches a < c the ops of a step are the same, and what changes are bytes and times. A
tensor either has the batch among its sizes or not, so its bytes are x + y n; an op takes the
longest of several such terms (arithmetic, traffic), plus a constant: a convex function of n.

Nothing of that is taken on trust. `between` is given real problems at three batches a < b < c, and
refuses if they differ in anything but bytes and times, or if one of these is not on a straight
line. What it makes from them in between is exact:

- Bytes are handed out in blocks of B. If both ends lie on a line whose slope is a multiple of B,
  rounding up moves x + y n against that line only one way as n grows; being nought at both ends,
  the difference is nought in between.
- A convex function that meets its chord at b is its chord. (Times are whole picoseconds, each
  rounded: they may be a few off.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import starmap

from gcpass._depth import nameless
from gcpass._problem import Op, Problem, Storage

_BLOCK = 512  # the largest block that a device's memory is handed out in

Sized = tuple[int, Problem]


def between(low: Sized, middle: Sized, high: Sized) -> Callable[[int], Problem] | None:
    """How to make the problem at batches from ``low`` to ``high``; None if it cannot be done.

    Args:
        low: a batch and its problem.
        middle: likewise.
        high: likewise, of the largest of the three batches.
    """
    (a, first), (b, second), (c, third) = low, middle, high
    if not _bare(first) == _bare(second) == _bare(third):
        return None
    bytes_at, times_at = (tuple(map(f, (first, second, third))) for f in (_nbytes, _times))
    for x, y, z in zip(*bytes_at, strict=True):
        slope, rest = divmod(z - x, c - a)
        if rest or slope % _BLOCK or x + slope * (b - a) != y:
            return None
    for x, y, z in zip(*times_at, strict=True):
        if abs((y - x) * (c - a) - (z - x) * (b - a)) > c - a:  # more than rounding
            return None

    def make(batch: int) -> Problem:
        if not a <= batch <= c:
            raise ValueError(f"{batch} is not between {a} and {c}")

        def at(low: int, high: int) -> int:
            return low + round((high - low) * (batch - a) / (c - a))

        def op(one: Op, other: Op) -> Op:
            return replace(
                one,
                picoseconds=at(one.picoseconds, other.picoseconds),
                traffic_picoseconds=at(one.traffic_picoseconds, other.traffic_picoseconds),
                workspace_nbytes=at(one.workspace_nbytes, other.workspace_nbytes),
            )

        def storage(one: Storage, other: Storage) -> Storage:
            return replace(one, nbytes=at(one.nbytes, other.nbytes))

        ops = starmap(op, zip(first.ops, third.ops, strict=True))
        storages = starmap(storage, zip(first.storages, third.storages, strict=True))
        return replace(first, ops=tuple(ops), storages=tuple(storages))

    return make


def _bare(problem: Problem) -> Problem:
    """The problem without names, bytes and times."""
    ops = (
        replace(nameless(op), picoseconds=0, traffic_picoseconds=0, workspace_nbytes=0)
        for op in problem.ops
    )
    storages = (replace(storage, nbytes=0) for storage in problem.storages)
    return replace(problem, ops=tuple(ops), storages=tuple(storages))


def _nbytes(problem: Problem) -> list[int]:
    return [s.nbytes for s in problem.storages] + [op.workspace_nbytes for op in problem.ops]


def _times(problem: Problem) -> list[int]:
    return [t for op in problem.ops for t in (op.picoseconds, op.traffic_picoseconds)]

"""The largest micro-batch or sequence that fits, and the size of highest predicted throughput.

The least memory that a step can do with grows with its size n, nearly in proportion. At two sizes
it gives a line; the line, a guess; at the guess it is found again, and the line is drawn through
what is known best. The search ends at a size that fits next to one that does not: both were
planned, and nothing is taken from the line but where to look.

The largest is not always the fastest: from where a device is busy, more only costs more
recomputation. Throughput is compared at a handful of sizes, each planned within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gcpass._estimate import Estimate

MOST = 65_536  # sizes above are not looked at
_LINES = 6  # guesses by lines, before the middle is taken


@dataclass(frozen=True)
class Fit:
    """What was found.

    Attributes:
        over: ``"batch"`` or ``"seq"``.
        step: the size is a multiple of this.
        rows: estimates by size, smallest first, each of a size that fits.
        largest: the largest size that fits; 0 if none does.
        fastest: the size of highest predicted throughput among the rows; 0 if none fits.
        tried: sizes whose least memory was found.
        too_large: the estimate of the smallest size, if it does not fit.
    """

    over: str
    step: int
    rows: tuple[tuple[int, Estimate], ...]
    largest: int
    fastest: int
    tried: tuple[int, ...]
    too_large: Estimate | None


@dataclass(frozen=True)
class Sizing:
    """What the search asks of one size.

    Attributes:
        needed: the least memory found that the step can be run in, in bytes.
        simply: the same of plans that need no search.
        estimate: the whole estimate.
    """

    needed: Callable[[int], int]
    simply: Callable[[int], int]
    estimate: Callable[[int], Estimate]


def search(of: Sizing, room: int, over: str, *, step: int = 1, most: int = MOST) -> Fit:
    """Find the largest size that fits, and the fastest.

    Args:
        of: what is asked of a size.
        room: bytes that the step may take.
        over: what the size is of: ``"batch"`` or ``"seq"``.
        step: sizes are multiples of this.
        most: no size above is looked at.
    """
    needed: dict[int, int] = {}

    def need(units: int) -> int:
        if units not in needed:
            simply = of.simply(units * step)
            needed[units] = simply if simply <= room else of.needed(units * step)
        return needed[units]

    largest = _largest(need, room, lambda units: of.simply(units * step), most // step)
    tried = tuple(units * step for units in sorted(needed))
    if not largest:
        return Fit(over, step, (), 0, 0, tried, of.estimate(step))
    sizes = _candidates(largest, of.estimate(step))
    rows = tuple((units * step, of.estimate(units * step)) for units in sizes)
    fastest = max(rows, key=lambda row: throughput(row[1]))[0]
    return Fit(over, step, rows, largest * step, fastest, tried, None)


def throughput(of: Estimate) -> float:
    """Samples, or tokens, a second."""
    return of.samples_per_second * (of.case.seq or 1)


def _largest(need: Callable[[int], int], room: int, simply: Callable[[int], int], most: int) -> int:
    """The largest size that fits, in steps; 0 if not even one step does."""
    if need(1) > room:
        return 0
    low, high = 1, most + 1
    known = {1: need(1)}
    slope = max(simply(2) - simply(1), 1) if most > 1 else 1
    lines = 0
    while high - low > 1:
        if len(known) > 1:
            a, b = sorted(known, key=lambda n: abs(known[n] - room))[:2]
            slope = max((known[a] - known[b]) // (a - b), 1)
        guess = low + (room - known[low]) // slope
        if lines >= _LINES:  # where lines have stopped helping, the middle
            guess = (low + high) // 2 if high <= most else 2 * low
        lines += 1
        guess = min(max(guess, low + 1), high - 1)
        known[guess] = need(guess)
        if known[guess] <= room:
            low = guess
        else:
            high = guess
    return low


def _candidates(largest: int, one: Estimate) -> list[int]:
    """Sizes whose throughput is compared, in steps: where recomputation begins, and between.

    Args:
        largest: the largest that fits.
        one: the estimate of one step.
    """
    assert one.keeping_all.heads is not None
    each = one.keeping_all.heads.activations_nbytes
    free = min(max((one.budget_nbytes + one.case.sizes.inputs_nbytes) // max(each, 1), 1), largest)
    return sorted({free, (free + largest) // 2, largest})

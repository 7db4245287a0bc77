"""The largest micro-batch or sequence that fits, and the size of highest predicted throughput.

The smallest peak of a step grows with its size n, nearly in proportion. Two sizes give a line; the
line, a guess; the guess is planned, and either it fits or it does not. Between the largest size
known to fit and the smallest known not to, the next guess is where the line through the two says,
kept inside, or the middle where lines have stopped helping: so the search ends at the largest size
that fits, each of its claims a plan.

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
        tried: sizes that were planned.
        too_large: the estimate of the smallest size planned that does not fit, if any.
    """

    over: str
    step: int
    rows: tuple[tuple[int, Estimate], ...]
    largest: int
    fastest: int
    tried: tuple[int, ...]
    too_large: Estimate | None


def search(at: Callable[[int], Estimate], over: str, *, step: int = 1, most: int = MOST) -> Fit:
    """Find the largest size that fits, and the fastest.

    Args:
        at: the estimate at a size, planned once for each.
        over: what the size is of: ``"batch"`` or ``"seq"``.
        step: sizes are multiples of this.
        most: no size above is looked at.
    """
    known: dict[int, Estimate] = {}

    def probe(units: int) -> Estimate:
        if units not in known:
            known[units] = at(units * step)
        return known[units]

    largest = _largest(probe, most // step)
    fitting = {u for u in known if known[u].fits and u <= largest}
    if largest:
        fitting |= {u for u in _candidates(largest, probe) if probe(u).fits}
    rows = tuple((u * step, known[u]) for u in sorted(fitting))
    fastest = max(rows, key=lambda row: _throughput(row[1]), default=(0, None))[0]
    failing = [u for u in sorted(known) if not known[u].fits]
    tried = tuple(u * step for u in sorted(known))
    return Fit(
        over, step, rows, largest * step, fastest, tried, known[failing[0]] if failing else None
    )


def _throughput(of: Estimate) -> float:
    """Samples, or tokens, a second."""
    return of.samples_per_second * (of.case.seq or 1)


def _largest(probe: Callable[[int], Estimate], most: int) -> int:
    """The largest size that fits, in steps; 0 if not even one step does."""
    if not probe(1).fits:
        return 0
    low, high, lines = 1, most + 1, 0
    while high - low > 1:
        guess = _on_the_line(probe, low, high) if lines < _LINES else None
        lines += 1
        if guess is None:
            guess = min(2 * low, (low + high) // 2) if high > most else (low + high) // 2
        guess = min(max(guess, low + 1), high - 1)
        if probe(guess).fits:
            low = guess
        else:
            high = guess
    return low


def _on_the_line(probe: Callable[[int], Estimate], low: int, high: int) -> int | None:
    """Where the line through two smallest peaks meets the budget; None if it is flat."""
    other = low + 1 if low == 1 else max(low // 2, 1)
    if low == 1 and high == 2:
        return None
    a, b = (_needed(probe(n)) for n in (other, low))
    slope = (a - b) / (other - low)
    if slope <= 0:
        return None
    budget = probe(low).device.usable_nbytes
    return int(low + (budget - b) / slope)


def _needed(of: Estimate) -> int:
    """The least memory that the step can be run in."""
    return of.state.total_nbytes + of.case.planner(of.training).smallest.predicted_peak_bytes


def _candidates(largest: int, probe: Callable[[int], Estimate]) -> list[int]:
    """Sizes whose throughput is compared: where recomputation begins, and between."""
    one = probe(1)
    assert one.keeping_all.heads is not None
    each = one.keeping_all.heads.activations_nbytes
    room = one.device.usable_nbytes - one.state.total_nbytes - one.case.sizes.inputs_nbytes
    free = min(max(int(room / max(each, 1)), 1), largest)
    return sorted({largest, free, max(largest // 2, 1), max(3 * largest // 4, 1)})

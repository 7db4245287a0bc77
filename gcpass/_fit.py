"""The largest micro-batch or sequence that fits, and the size of highest predicted throughput.

The least memory that a step can do with grows with its size n, nearly in proportion. At one size
the part of it that grows gives a line; the line, a guess; at the guess it is found again, and the
line is drawn through what is known best. The search ends at a size that fits next to one that does
not: both were planned, and nothing is taken from the line but where to look.

Searching for the least memory takes most of the time. It is done at the first size; at another one
the same choices are tried, and only where they do not fit is there a search again.

The largest is not always the fastest: from where a device is busy, more only costs more
recomputation. Throughput is compared at a handful of sizes, each planned within the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gcpass._estimate import Case, Estimate, Planner, estimate
from gcpass._plan import Plan
from gcpass._training import Device, Training, heads, state_heads
from gcpass._workload import Workload

MOST = 65_536  # sizes above are not looked at
_FIRST = 2  # units looked at first: with a single one, steps are wired unlike all others
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
class Need:
    """Memory of a step.

    Attributes:
        nbytes: all of it.
        growing_nbytes: the part that grows with its size.
    """

    nbytes: int
    growing_nbytes: int


@dataclass(frozen=True)
class Sizing:
    """What the search asks of one size.

    Attributes:
        needed: the least memory found that the step can be run in.
        keeping_all: the same with nothing recomputed.
        estimate: the whole estimate.
    """

    needed: Callable[[int], Need]
    keeping_all: Callable[[int], Need]
    estimate: Callable[[int], Estimate]


def sizing(
    trace: Callable[[Workload], Case],
    workload: Workload,
    over: str,
    training: Training,
    device: Device,
) -> Sizing:
    """What planning says of a workload in other sizes.

    Args:
        trace: traces a workload.
        workload: the one whose size is looked for.
        over: which field of it is the size: ``"batch"`` or ``"seq"``.
        training: how it is trained.
        device: what it has to fit into.
    """
    searched: list[Planner] = []

    def case(size: int) -> Case:
        made = trace(replace(workload, **{over: size}))
        if searched:
            made.planner(training).know(searched[0])
        return made

    def need(case: Case, plan: Plan) -> Need:
        of = heads(training, case.sizes, plan.predicted_peak_bytes, plan.peak.gradients_bytes)
        return Need(of.total_nbytes, of.activations_nbytes)

    def needed(size: int) -> Need:
        of = case(size)
        planner = of.planner(training)
        if not searched:
            searched.append(planner)
            return need(of, planner.smallest)
        room = device.usable_nbytes - state_heads(training, of.sizes).total_nbytes
        return need(of, planner.lean(room))

    def keeping_all(size: int) -> Need:
        of = case(size)
        return need(of, of.planner(training).keeping_all)

    return Sizing(needed, keeping_all, lambda size: estimate(case(size), training, device, ()))


def search(of: Sizing, room: int, over: str, *, step: int = 1, most: int = MOST) -> Fit:
    """Find the largest size that fits, and the fastest.

    Args:
        of: what is asked of a size.
        room: bytes that the step may take.
        over: what the size is of: ``"batch"`` or ``"seq"``.
        step: sizes are multiples of this.
        most: no size above is looked at.
    """
    known: dict[int, Need] = {}

    def need(units: int) -> Need:
        known[units] = of.needed(units * step)
        return known[units]

    largest = _largest(need, room, most // step)
    tried = tuple(units * step for units in sorted(known))
    if not largest:
        return Fit(over, step, (), 0, 0, tried, of.estimate(step))
    seen = min(units for units in known if units <= largest)
    sizes = _candidates(largest, room, seen, of.keeping_all(seen * step))
    rows = tuple((units * step, of.estimate(units * step)) for units in sizes)
    fastest = max(rows, key=lambda row: throughput(row[1]))[0]
    return Fit(over, step, rows, largest * step, fastest, tried, None)


def throughput(of: Estimate) -> float:
    """Samples, or tokens, a second."""
    return of.samples_per_second * (of.case.seq or 1)


def _largest(need: Callable[[int], Need], room: int, most: int) -> int:
    """The largest size that fits, in steps; 0 if not even one step does."""
    low, high = 0, most + 1
    known: dict[int, int] = {}
    guess = min(_FIRST, most)
    while high - low > 1:
        needed = need(guess)
        known[guess] = needed.nbytes
        low, high = (guess, high) if needed.nbytes <= room else (low, guess)
        slope = needed.growing_nbytes // guess
        if len(known) > 1:
            a, b = sorted(known, key=lambda n: abs(known[n] - room))[:2]
            slope = (known[a] - known[b]) // (a - b)
        if slope > 0 and len(known) <= _LINES:
            guess += (room - known[guess]) // slope
        else:  # where lines have stopped helping, the middle
            guess = (low + high) // 2 if high <= most else 2 * low
        guess = min(max(guess, low + 1), high - 1)
    return low


def _candidates(largest: int, room: int, seen: int, keeping_all: Need) -> list[int]:
    """Sizes whose throughput is compared, in steps: where recomputation begins, and between.

    Args:
        largest: the largest that fits.
        room: bytes that the step may take.
        seen: a size that fits, in steps.
        keeping_all: what that size needs with nothing recomputed.
    """
    fixed = keeping_all.nbytes - keeping_all.growing_nbytes
    free = (room - fixed) * seen // max(keeping_all.growing_nbytes, 1)
    free = min(max(free, 1), largest)
    return sorted({free, (free + largest) // 2, largest})

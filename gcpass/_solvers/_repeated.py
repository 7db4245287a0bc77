"""Plans that recompute some values more than once, for budgets that one recomputation cannot meet.

Let boundaries i < j bound a stretch of the forward, and let hold(i, j) be the bytes that crossing j
adds to what crosses i, with what must be kept between them. The backward of the stretch, given what
crosses i and m bytes, takes the least time

    T(i, j, m) = min  time(i, j)                                  if own(i, j) <= m: as one segment
                      ahead(i, k) + T(k, j, m - hold(i, k)) + T(i, k, m)      for i < k < j

where ahead(i, k) is the time of running from i to k with nothing held but what crosses k: a *stop*
(`gcpass._repeat`), to which the first part returns when the second is done. This is the dynamic
program of Rotor (Beaumont et al. 2019) with the bytes and times of the graph at hand. Kept values
cost no time ahead, for the forward passes them anyway, so the whole step takes

    P(i, m)    = min  T(i, j, m) + P(j, m - hold(i, j))                            for i < j
                      time(o) + P(j, m - kept(o))      if own(o) <= m, o an option of segment i, j

(`gcpass._solvers._segments`). m is counted in `_LEVELS` equal parts of the bound; the evaluator
judges the result, and the bound is searched for as it is for segments.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from gcpass._evaluate import Evaluator
from gcpass._problem import Problem, Rule
from gcpass._repeat import repeat
from gcpass._solvers._boundaries import Boundary
from gcpass._solvers._segments import solve as solve_by_segments
from gcpass._solvers._segments import sweep as sweep_segments
from gcpass._solvers._solution import Solution, Status, unbeaten
from gcpass._solvers._table import Option, SegmentTable, table_of

_LEVELS = 256
_BOUNDARIES = 96
_LONGEST = 64  # boundaries in a stretch that is run more than once
_REPEATING = 6  # one in so many plans of a sweep recomputes values more than once
_FACTORS = (1.02, 1.0, 0.985, 0.97, 0.94, 0.9)  # of the budget, tried as the model's bound
_NEAR = 1.02  # times what no plan changes: from there on nothing smaller is looked for
_HALVINGS, _OPS = 7, 60_000  # of the range of the smallest bound; evaluated ops spent on them

_Array = np.ndarray


def solve(evaluator: Evaluator, budget_bytes: int | None) -> Solution:
    """The least recomputation within the budget, each value recomputed once if that is enough.

    Args:
        evaluator: of the problem.
        budget_bytes: the bound on the peak, or None for none.

    Returns:
        The plan; if none within the budget is found, the one with the smallest peak.
    """
    once = solve_by_segments(evaluator, budget_bytes)
    if budget_bytes is None or once.status is Status.FEASIBLE:
        return once
    more = fastest_repeating(evaluator, budget_bytes)
    return more or smallest_repeating(evaluator, once.evaluation.peak_nbytes) or once


def fastest_repeating(evaluator: Evaluator, budget: int) -> Solution | None:
    """The least time found within a budget; None if nothing found is within it."""
    if budget < _least_peak(evaluator):
        return None
    for factor in _FACTORS:
        found = _program_of(evaluator).solve(budget * factor)
        if found is None or found.evaluation.peak_nbytes <= budget:
            return found
    return None


def _least_peak(evaluator: Evaluator) -> int:
    """Bytes of the backward's own values at its fullest: no plan holds fewer."""
    return max(step.base_during - step.reusable_nbytes for step in evaluator.backward.steps)


def sweep(evaluator: Evaluator, count: int) -> list[Solution]:
    """Up to ``count`` plans, from the fastest to the smallest, none beaten by another.

    Below the smallest peak of a single recomputation a few recompute more than once.
    """
    further = max(min(count // _REPEATING, _OPS // len(evaluator.problem.ops)), 1)
    once = sweep_segments(evaluator, max(count - further, 2))
    floor = once[-1].evaluation.peak_nbytes
    smallest = smallest_repeating(evaluator, floor)
    if smallest is None:
        return once
    step = (floor - smallest.evaluation.peak_nbytes) // further
    budgets = (floor - step * i for i in range(1, further))
    below = [s for budget in budgets if (s := fastest_repeating(evaluator, budget))]
    found = unbeaten([*once, *below, replace(smallest, status=Status.FEASIBLE)])
    return [*found[: count - 1], *found[count - 1 :][-1:]]


@lru_cache(maxsize=4)
def smallest_repeating(evaluator: Evaluator, ceiling: int) -> Solution | None:
    """The smallest peak found, below ``ceiling`` bytes; None if there is none below it."""
    low, high = float(_least_peak(evaluator)), float(ceiling)
    if low * _NEAR > high:
        return None
    program = _program_of(evaluator)
    best: Solution | None = None
    for _ in range(max(min(_HALVINGS, _OPS // len(evaluator.problem.ops)), 3)):
        bound = (low + high) / 2
        found = program.solve(bound)
        if found is None:
            low = bound
            continue
        high = bound
        limit = best.evaluation.peak_nbytes if best else ceiling
        if found.evaluation.peak_nbytes < limit:
            best = found
    return replace(best, status=Status.INFEASIBLE) if best else None


@lru_cache(maxsize=4)
def _program_of(evaluator: Evaluator) -> _Program:
    return _Program(evaluator)


class _Program:
    """T and P of one problem."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._problem = problem = evaluator.problem
        self._boundaries, self._options = _thinned(table_of(evaluator), _BOUNDARIES)
        self._segments = _leanest(self._options)
        self._hold = _hold(problem, self._boundaries, self._segments)
        self._ahead = _ahead(problem, self._boundaries)
        # A region that the user checkpointed is replayed once, with the random numbers it drew.
        self._allowed = not any(op.obeys(Rule.NEVER_KEEP) for op in self._problem.ops)

    def solve(self, bound: float) -> Solution | None:
        """The least time within ``bound`` by the model, evaluated; None if there is none."""
        if not self._allowed:
            return None
        tables = _Tables(len(self._options), bound / _LEVELS, self._hold)
        tables.fill_stretches(self._segments, self._ahead)
        steps = tables.fill_steps(self._options)
        if steps is None:
            return None
        kept, stops = self._read(tables, steps)
        repeated = repeat(self._problem, kept, stops)
        judge = Evaluator(repeated.problem)
        placed = [repeated.place[k] for k in kept]
        if judge.violations(placed):
            return None
        return Solution(Status.FEASIBLE, kept, judge.evaluate(placed), stops=stops)

    def _read(self, tables: _Tables, steps: list[_Step]) -> tuple[frozenset[int], dict[int, int]]:
        """What the choices of the tables keep, and where they stop."""
        boundaries = self._boundaries
        kept: set[int] = set()
        stops: dict[int, int] = {}
        for step in steps:
            if step.option is not None:
                kept |= step.option.kept
                continue
            kept |= boundaries[step.stop].crossing
            stack = [(step.start, step.stop, step.level, 1)]
            while stack:
                i, j, level, depth = stack.pop()
                k = int(tables.split[i, j, level])
                if k < 0:
                    kept |= self._segments[i, j].kept - boundaries[j].crossing
                    continue
                stops[boundaries[k].position] = depth
                left = level - int(tables.shift[i, k])
                stack += [(i, k, level, depth + 1), (k, j, left, depth + 1)]
        return frozenset(kept), stops


@dataclass(frozen=True, slots=True)
class _Step:
    """A choice of P: the stretch from a boundary to another at a level, or an option of it."""

    start: int
    stop: int
    level: int
    option: Option | None


class _Tables:
    """T and P at every level of memory, and the choices behind them.

    Attributes:
        shift: hold(i, j) in levels.
        split: for each stretch and level, the boundary it stops at; -1: it is one segment.
    """

    def __init__(self, last: int, unit: float, hold: _Array) -> None:
        count = last + 1
        self._last, self._unit = last, unit
        self._levels = np.arange(_LEVELS + 1)
        self.shift = np.minimum(np.rint(hold / unit), _LEVELS + 1).astype(np.int64)
        self._times = np.full((count, count, _LEVELS + 1), np.inf)
        self.split = np.full((count, count, _LEVELS + 1), -1, np.int16)

    def fill_stretches(self, segments: dict[tuple[int, int], Option], ahead: _Array) -> None:
        """T, from short stretches to long ones."""
        for (i, j), option in segments.items():
            self._times[i, j, self._first_level(option) :] = option.picoseconds
        for length in range(2, min(self._last, _LONGEST) + 1):
            for i in range(self._last + 1 - length):
                j = i + length
                inner = np.arange(i + 1, j)
                second = self._after(self._times[i + 1 : j, j], self.shift[i, i + 1 : j])
                total = self._times[i, i + 1 : j] + second + ahead[i, i + 1 : j, None]
                which = total.argmin(axis=0)
                least = total[which, self._levels]
                better = least < self._times[i, j]
                self._times[i, j][better] = least[better]
                self.split[i, j][better] = inner[which][better]

    def fill_steps(self, options: list[list[Option]]) -> list[_Step] | None:
        """P, from the last boundary to the first: the best choices; None if there are none."""
        rest = np.full((self._last + 1, _LEVELS + 1), np.inf)
        rest[self._last] = 0
        choice = np.zeros((self._last, _LEVELS + 1), np.int64)
        for i in reversed(range(self._last)):
            stretches = self._after(rest[i + 1 :], self.shift[i, i + 1 :]) + self._times[i, i + 1 :]
            shifts = np.array([round(o.kept_nbytes / self._unit) for o in options[i]])
            single = self._after(rest[[o.stop for o in options[i]]], shifts)
            single += np.array([o.picoseconds for o in options[i]])[:, None]
            lowest = np.array([self._first_level(o) for o in options[i]])
            single[self._levels < lowest[:, None]] = np.inf
            total = np.concatenate([single, stretches])
            choice[i] = total.argmin(axis=0)
            rest[i] = total[choice[i], self._levels]
        if not np.isfinite(rest[0, _LEVELS]):
            return None
        steps, i, level = [], 0, _LEVELS
        while i < self._last:
            which = int(choice[i, level])
            option = options[i][which] if which < len(options[i]) else None
            stop = option.stop if option else i + 1 + which - len(options[i])
            steps.append(_Step(i, stop, level, option))
            held = round(option.kept_nbytes / self._unit) if option else int(self.shift[i, stop])
            i, level = stop, level - held
        return steps

    def _first_level(self, option: Option) -> int:
        """The lowest level at which a segment fits; one past the last if at none."""
        return min(math.ceil(option.own_nbytes / self._unit), _LEVELS + 1)

    def _after(self, times: _Array, shift: _Array) -> _Array:
        """``times`` with so many levels less."""
        level = self._levels - shift[:, None]
        return np.where(level >= 0, np.take_along_axis(times, np.maximum(level, 0), axis=1), np.inf)


def _thinned(table: SegmentTable, limit: int) -> tuple[list[Boundary], list[list[Option]]]:
    """At most about ``limit`` boundaries, evenly spread, and the options of segments from each."""
    last = len(table.boundaries) - 1
    chosen = [*range(0, last, -(-last // limit)), last]
    number = {index: n for n, index in enumerate(chosen)}
    options = [
        [replace(o, stop=number[o.stop]) for o in table.options(index) if o.stop in number]
        for index in chosen[:-1]
    ]
    return [table.boundaries[index] for index in chosen], options


def _leanest(options: list[list[Option]]) -> dict[tuple[int, int], Option]:
    """For each segment, the option that keeps the fewest bytes."""
    leanest: dict[tuple[int, int], Option] = {}
    for start, here in enumerate(options):
        for option in here:
            known = leanest.get((start, option.stop))
            if known is None or option.kept_nbytes < known.kept_nbytes:
                leanest[start, option.stop] = option
    return leanest


def _hold(
    problem: Problem, boundaries: list[Boundary], segments: dict[tuple[int, int], Option]
) -> _Array:
    """hold(i, j): bytes crossing j that are made after i, and those that must be kept between."""
    count = len(boundaries)
    crossing = np.zeros((count, count))
    for j, boundary in enumerate(boundaries):
        for holder in boundary.crossing:
            made = bisect_right(boundaries, holder, key=lambda b: b.position)
            crossing[:made, j] += problem.keep_nbytes(holder)
    must = [0.0]
    for i in range(count - 1):
        must.append(must[-1] + max(segments[i, i + 1].kept_nbytes - crossing[i, i + 1], 0))
    return crossing + np.maximum(np.subtract.outer(must, must).T, 0)


def _ahead(problem: Problem, boundaries: list[Boundary]) -> _Array:
    """ahead(i, k): the time of all that is wanted from i to k."""
    passed = [0.0]
    for first, last in pairwise(boundaries):
        wanted = (op for op in range(first.position, last.position) if problem.wanted[op])
        passed.append(passed[-1] + sum(map(problem.recompute_picoseconds, wanted)))
    return np.subtract.outer(passed, passed).T

"""A certificate: no plan within the budget recomputes for less time than this.

Let held(t, K) be the bytes alive during step t of the backward under a plan K. A plan within the
budget B has held(t, K) <= B at every t, so for any one t and any price p >= 0

    min { time(K) : K within B }  >=  min over all K of  time(K) + p (held(t, K) - B),      (1)

the Lagrangian relaxation of all moments but one. Whatever K is,

    held(t, K)  >=  base(t) + fixed(t) + sum of bytes(v) over kept v with until(v) >= t,    (2)

where base(t) are the backward's own values (`gcpass._backward`); fixed(t) the values that steps at
or before t *and* steps at or after t read: kept or recomputed, they are alive at t; and until(v)
the earliest step that can be the last to use v if it is kept and used: the last one that reads v
itself, or the first at which any of its readers could be recomputed. All that is kept is alive at
the first step. The right side of (2) is a constant and a price on each kept value. So (1) is one
minimum cut (`gcpass._solvers._cut`), with price p on the values that (2) counts.

As a function of the bytes that are left, B - base(t) - fixed(t), each cut is a straight line below
the optimum, and all of them together its lower hull (`_hull.py`). The best line is found by cutting
at the slope between the two corners on either side of those bytes, as long as that shows a corner
below; lines found for one budget serve all others.

Under fusion a recomputed value may never get a buffer, so fixed(t) is left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache

from gcpass._evaluate import Evaluator
from gcpass._solvers._cut import CutNetwork
from gcpass._solvers._hull import Hull
from gcpass._solvers._solution import Solution, Status

_CUTS = 8  # for one budget at one moment
_MOMENTS, _OPS = 6, 12_000  # moments tried, and ops cut in all of them


def lower_bound(evaluator: Evaluator, budget_bytes: int) -> int | None:
    """The best lower bound found on the time recomputed by any plan within a budget.

    Args:
        evaluator: of the problem.
        budget_bytes: bound on the peak.

    Returns:
        Picoseconds; None if no plan at all is within the budget.
    """
    best = 0
    for moment in _moments(evaluator):
        bound = moment.least.at(budget_bytes - moment.constant)
        if bound is None:
            return None
        best = max(best, bound)
    return best


def certified(evaluator: Evaluator, solution: Solution, budget_bytes: int | None) -> Solution:
    """The solution with its bound: 0 where nothing is recomputed, or no plan within the budget.

    Where values are recomputed more than once there is none: they need not be alive in between.
    """
    if budget_bytes is None or solution.status is Status.INFEASIBLE or solution.stops:
        return solution
    if not solution.evaluation.recompute_picoseconds:
        return solution
    return replace(solution, bound_picoseconds=lower_bound(evaluator, budget_bytes) or 0)


@lru_cache(maxsize=4)
def _moments(evaluator: Evaluator) -> list[_Moment]:
    """Steps at which (2) promises to be large: the first, and the fullest all along."""
    relaxation, total = _Relaxation(evaluator), len(evaluator.backward.steps)
    count = _OPS // max(len(evaluator.problem.forward_range), 1)
    count = max(min(_MOMENTS, count), 1)
    early = range(max(total // 50, 1))
    parts = [range(i * total // count, (i + 1) * total // count) for i in range(count)]
    found = [0, *(max(part, key=relaxation.constant) for part in (early, *parts) if part)]
    return [_Moment(relaxation, t) for t in list(dict.fromkeys(found))[:count]]


class _Moment:
    """The right side of (2) at one step."""

    def __init__(self, relaxation: _Relaxation, t: int) -> None:
        self._relaxation, self._t = relaxation, t
        self.constant = relaxation.constant(t)

    @cached_property
    def least(self) -> _Least:
        problem = self._relaxation.problem
        weigh = self._relaxation.counted_nbytes
        network = CutNetwork(problem, problem.forward_range, (), lambda op: weigh(op, self._t))
        return _Least(network)


class _Relaxation:
    """The right side of (2) for every step of one problem."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.problem = problem = evaluator.problem
        self._steps, self._wanted_by = evaluator.backward.steps, evaluator.backward.wanted_by
        self._first: dict[int, int] = {}  # storage -> first and last step that reads it
        self._last: dict[int, int] = {}
        for t, step in enumerate(self._steps):
            for need in step.needs:
                for s in problem.ops[need].storages:
                    if problem.storages[s].producer in problem.forward_range:
                        self._first.setdefault(s, t)
                        self._last[s] = t
        for s in problem.output_storages:  # in the base
            self._first.pop(s, None)
            self._last.pop(s, None)
        self._fixed = self._fixed_nbytes()
        self._until = self._earliest_ends()

    def constant(self, t: int) -> int:
        """base(t) + fixed(t)."""
        return self._steps[t].base_during - self._steps[t].reusable_nbytes + self._fixed[t]

    def counted_nbytes(self, op: int, t: int) -> int:
        """What keeping ``op`` adds to (2)."""
        s = self.problem.kept_storage[op]
        eager = self.problem.codegen == "eager"
        fixed = eager and self._first.get(s, t + 1) <= t <= self._last[s]
        return self.problem.keep_nbytes(op) if self._until[op] >= t and not fixed else 0

    def _earliest_ends(self) -> dict[int, int]:
        """until(v) for every op that can be kept."""
        problem, never = self.problem, len(self._steps)
        pulled = [never] * len(problem.ops)  # the first step at which each could be recomputed
        for op in reversed(problem.forward_range):
            readers = [pulled[r] for r in problem.readers[op] if r in problem.forward_range]
            pulled[op] = min([self._wanted_by.get(op, (never,))[0], *readers])
        ends = {}
        for op, s in problem.kept_storage.items():
            readers = [pulled[r] for r in problem.readers[op] if r in problem.forward_range]
            used = min(readers, default=never)
            ends[op] = max(self._last.get(s, 0), used if used < never else 0)
        return ends

    def _fixed_nbytes(self) -> list[int]:
        """fixed(t) for every step."""
        fixed = [0] * (len(self._steps) + 1)
        if self.problem.codegen == "eager":
            for s, first in self._first.items():
                fixed[first] += self.problem.storages[s].nbytes
                fixed[self._last[s] + 1] -= self.problem.storages[s].nbytes
        for t in range(1, len(fixed)):
            fixed[t] += fixed[t - 1]
        return fixed


class _Least:
    """The least time at some bytes, by the lines of a hull found where it is asked for."""

    def __init__(self, network: CutNetwork) -> None:
        self._hull = Hull(network)
        self._lines: list[tuple[Fraction, Fraction]] = []  # price p, and the least time + p bytes

    def at(self, room: int) -> int | None:
        """At ``room`` bytes, rounded up to whole picoseconds; None if no plan has so few."""
        corners = self._hull.corners
        if corners[-1].nbytes > room:
            return None
        for _ in range(_CUTS):
            above = sum(corner.nbytes > room for corner in corners)  # they come first
            if not above or self._hull.is_edge(above - 1):
                break
            price = self._hull.slope(above - 1)
            cut = self._hull.split(above - 1)
            self._lines.append((price, cut.picoseconds + price * cut.nbytes))
        best = max((least - price * room for price, least in self._lines), default=Fraction(0))
        return max(math.ceil(best), corners[0].picoseconds)

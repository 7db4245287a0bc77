"""Small problems, searched value by value: change what is kept of up to three values at a time.

Of medium ones, the largest values.

The dynamic program sees a problem through its boundaries, of which a small graph has few. There,
evaluations cost little, and a search in the neighbourhood of several plans finds what it missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, zip_longest
from math import comb

from gcpass._evaluate import Evaluation, Evaluator
from gcpass._problem import Problem
from gcpass._solvers._solution import Found, badness

_OPS = {"eager": 700_000, "inductor": 250_000}  # evaluated in a search; fused ones take longer
_ROUNDS = 2  # in which every move is tried, for that
_FEW = 32  # so few values changed alone are not worth the time in a larger problem
_STARTS = 5  # searched from, of those within the budget and of those over it


class Neighbourhood:
    """The plans that differ little from a given one; none where the problem is too large.

    Args:
        evaluator: of the problem.
        partly: whether the largest values are changed where there is no time for all.
    """

    def __init__(self, evaluator: Evaluator, *, partly: bool) -> None:
        problem = evaluator.problem
        self._evaluator = evaluator
        self._left = _OPS[problem.codegen] // len(problem.ops)  # evaluations
        trials = self._left // _ROUNDS
        values = _largest(problem, trials, partly=partly)
        self._moves: list[frozenset[int]] = []  # values that change together
        for size in (1, 2, 3):
            if len(self._moves) + comb(len(values), size) <= trials:
                self._moves += map(frozenset, combinations(values, size))

    def search(self, starts: Iterable[Found], budget: int) -> Found:
        """The best plan found from some: within the budget, then fast, then small.

        Args:
            starts: valid plans, at least one; the best that fit and that do not are tried first.
            budget: bytes.
        """
        ordered = sorted(starts, key=lambda found: badness(found[1], budget))
        fitting = [found for found in ordered if found[1].peak_nbytes <= budget]
        exceeding = [found for found in ordered if found[1].peak_nbytes > budget]
        best = ordered[0]
        for pair in zip_longest(fitting[:_STARTS], exceeding[:_STARTS]):
            for start in filter(None, pair):
                found = self._climb(*start, budget)
                best = min(best, found, key=lambda f: badness(f[1], budget))
        return best

    def _climb(self, kept: frozenset[int], evaluation: Evaluation, budget: int) -> Found:
        """Take every move that is for the better until a whole round finds none."""
        evaluator, idle, turn = self._evaluator, 0, 0
        while self._left > 0 and idle < len(self._moves):
            changed = kept ^ self._moves[turn % len(self._moves)]
            idle, turn = idle + 1, turn + 1
            if evaluator.violations(changed):
                continue
            self._left -= 1
            result = evaluator.evaluate(changed)
            if badness(result, budget) < badness(evaluation, budget):
                kept, evaluation, idle = changed, result, 0
        return kept, evaluation


def _largest(problem: Problem, count: int, *, partly: bool) -> list[int]:
    """Values that are worth changing alone, the largest first: all, or if ``partly`` ``count``, or
    none."""
    values = [op for op in problem.kept_storage if problem.wanted[op]]
    if len(values) > count and (not partly or count < _FEW):
        return []
    return sorted(values, key=problem.keep_nbytes, reverse=True)[:count]

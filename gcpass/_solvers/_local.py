"""Small problems, searched value by value: change what is kept of up to three values at a time.

The dynamic program sees a problem through its boundaries, of which a small graph has few. There,
evaluations cost little, and a search in the neighbourhood of several plans finds what it missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import comb

from gcpass._evaluate import Evaluation, Evaluator

_OPS = 150_000  # evaluated ops spent on one start
_ROUNDS = 4  # in which every move is tried, for that

Found = tuple[frozenset[int], Evaluation]


class Neighbourhood:
    """The plans that differ little from a given one.

    Attributes:
        moves: sets of values that change together; none where the problem is too large to search.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        problem = evaluator.problem
        self._evaluator = evaluator
        self._trials = _OPS // len(problem.ops)
        values = [op for op in problem.kept_storage if problem.wanted[op]]
        self.moves: list[frozenset[int]] = []
        for size in (1, 2, 3):
            if len(self.moves) + comb(len(values), size) <= self._trials // _ROUNDS:
                self.moves += map(frozenset, combinations(values, size))

    def search(self, starts: Iterable[frozenset[int]], budget: int) -> Found:
        """The best plan found from some: within the budget, then fast, then small.

        Args:
            starts: at least one valid plan.
            budget: bytes.
        """
        return min((self._climb(s, budget) for s in starts), key=lambda f: _badness(f[1], budget))

    def _climb(self, kept: frozenset[int], budget: int) -> Found:
        """Take every move that is for the better until a whole round finds none."""
        evaluate = self._evaluator.evaluate
        evaluation, idle = evaluate(kept), 0
        for trial in range(self._trials if self.moves else 0):
            changed = kept ^ self.moves[trial % len(self.moves)]
            idle += 1
            if not self._evaluator.violations(changed):
                result = evaluate(changed)
                if _badness(result, budget) < _badness(evaluation, budget):
                    kept, evaluation, idle = changed, result, 0
            if idle == len(self.moves):
                break
        return kept, evaluation


def _badness(evaluation: Evaluation, budget: int) -> tuple[int, int, int]:
    excess = max(evaluation.peak_nbytes - budget, 0)
    return excess, evaluation.recompute_picoseconds, evaluation.peak_nbytes

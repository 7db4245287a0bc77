"""What every solver returns, and what makes one plan better than another."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gcpass._evaluate import Evaluation

Found = tuple[frozenset[int], Evaluation]  # what is kept, and what that comes to


def badness(evaluation: Evaluation, budget: int) -> tuple[int, int, int]:
    """What makes one plan worse than another: excess over the budget, then time, then bytes."""
    excess = max(evaluation.peak_nbytes - budget, 0)
    return excess, evaluation.recompute_picoseconds, evaluation.peak_nbytes


class Status(enum.Enum):
    """How a solution stands to its budget."""

    FEASIBLE = "feasible"  # the evaluated peak is within the budget
    INFEASIBLE = "infeasible"  # no plan within the budget was found; this is the smallest peak


@dataclass(frozen=True)
class Solution:
    """The plan a solver found.

    Attributes:
        status: whether the evaluated peak is within the budget.
        kept: the ops kept.
        evaluation: its evaluation.
        bound_picoseconds: no plan within the budget recomputes for less time than this.
    """

    status: Status
    kept: frozenset[int]
    evaluation: Evaluation
    bound_picoseconds: int = 0

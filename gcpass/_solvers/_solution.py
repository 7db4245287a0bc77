"""What every solver returns, and what makes one plan better than another."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from gcpass._evaluate import Evaluation
from gcpass._repeat import Stops

Found = tuple[frozenset[int], Evaluation]  # what is kept, and what that comes to


def badness(evaluation: Evaluation, budget: int) -> tuple[int, int, int]:
    """What makes one plan worse than another: excess over the budget, then time, then bytes."""
    excess = max(evaluation.peak_nbytes - budget, 0)
    return excess, evaluation.overhead_picoseconds, evaluation.peak_nbytes


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
        evaluation: its evaluation; with stops, that of the repeated problem.
        bound_picoseconds: no plan within the budget that recomputes values once at most
            recomputes for less time than this.
        stops: where recomputed values are let go, to be recomputed again (`gcpass._repeat`).
    """

    status: Status
    kept: frozenset[int]
    evaluation: Evaluation
    bound_picoseconds: int = 0
    stops: Stops = field(default_factory=dict)


def unbeaten(solutions: Iterable[Solution]) -> list[Solution]:
    """Those that no other beats in both peak and time, fastest first."""
    ordered = sorted(
        solutions,
        key=lambda s: (s.evaluation.peak_nbytes, s.evaluation.overhead_picoseconds),
    )
    useful: list[Solution] = []
    for solution in ordered:
        time = solution.evaluation.overhead_picoseconds
        if not useful or time < useful[-1].evaluation.overhead_picoseconds:
            useful.append(solution)
    return useful[::-1]

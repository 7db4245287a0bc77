"""Solvers: interchangeable algorithms behind one result.

A solver takes an evaluator (of one problem) and a budget in bytes, and returns a `Solution`.
"""

from __future__ import annotations

from collections.abc import Callable

from gcpass._errors import OptionError, did_you_mean
from gcpass._evaluate import Evaluator
from gcpass._solvers._bound import certified
from gcpass._solvers._repeated import solve, sweep
from gcpass._solvers._segments import sketch, spread
from gcpass._solvers._segments import solve as solve_by_segments
from gcpass._solvers._solution import Solution, Status
from gcpass._solvers._within import fastest, made_in, saved_nbytes, within

Solver = Callable[[Evaluator, "int | None"], Solution]


def find_solver(name: str, *, certify: bool = True) -> Solver:
    """The solver called ``name``.

    Args:
        name: of the solver.
        certify: whether its solutions carry a lower bound, which takes some cuts more.

    Raises:
        OptionError: there is none.
    """
    from gcpass._solvers import _ilp

    solvers: dict[str, Solver] = {"auto": solve, "segments": solve_by_segments, "ilp": _ilp.solve}
    if name not in solvers:
        raise OptionError(f"solver={name!r} is not known; {did_you_mean(name, solvers)}")
    solver = solvers[name]
    if not certify:
        return solver
    return lambda evaluator, budget: certified(evaluator, solver(evaluator, budget), budget)


__all__ = [
    "Solution",
    "Solver",
    "Status",
    "fastest",
    "find_solver",
    "made_in",
    "saved_nbytes",
    "sketch",
    "spread",
    "sweep",
    "within",
]

"""The errors gcpass raises, and the one helper that suggests a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GcpassError(Exception):
    """Any error that gcpass raises on purpose: its text says what to change."""


class OptionError(GcpassError, ValueError):
    """An option, argument or environment variable has a value that cannot be used."""


class InfeasibleBudget(GcpassError):
    """No plan keeps the peak within the budget.

    Attributes:
        budget_bytes: the budget that was asked for.
        floor_bytes: the smallest peak that any plan found reaches.
    """

    def __init__(self, message: str, *, budget_bytes: int, floor_bytes: int) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes


class UnsupportedGraph(GcpassError):
    """The captured graph holds something the planner cannot reason about."""


class CaptureError(GcpassError):
    """The function could not be captured as one differentiable graph."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"

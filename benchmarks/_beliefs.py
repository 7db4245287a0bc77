"""What the sections of the folklore page share: a belief, its figures, and plans to find them with.

A section finds figures (plain numbers, which go into the record) and tells what they say. Telling
takes nothing but the figures, so that a section can be found again, or the page written again,
without the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import gcpass
from benchmarks.models import build
from gcpass import Plan
from gcpass._estimate import Planner
from gcpass.fx._capture import capture
from gcpass.fx._partitioner import analyze_graph
from gcpass.fx._prices import find_prices

Figures = dict[str, Any]

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Section:
    """A belief.

    Attributes:
        find: its figures, for the profile of a device.
        tell: the lines of the page that say what they are.
    """

    find: Callable[[str], Figures]
    tell: Callable[[Figures], list[str]]


def built(name: str, size: str = "paper", **changes: Any) -> Any:
    """A model of the zoo on fake tensors."""
    with gcpass.fake_mode():
        return build(name, size, **changes)


def planner_of(step: tuple[Any, Any], hardware: str) -> Planner:
    """The plans of a callable and its arguments, traced once, with Inductor's fusion."""
    fn, args = step
    captured = capture(fn, args, None, "inductor")
    prices = find_prices(hardware, torch.device("cpu"))
    count = captured.num_fwd_outputs
    return Planner(analyze_graph(captured.joint, count, prices, "inductor").problem)


def quietly(fn: Any, args: Any, **options: Any) -> Plan:
    """A plan; of a budget that is too small, the smallest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gcpass.plan(fn, args, **{"on_infeasible": "best", **options})


def figures_of(plan: Plan) -> Figures:
    """What the page says of a plan."""
    return {
        "peak_bytes": plan.predicted_peak_bytes,
        "saved_bytes": plan.saved_bytes,
        "recompute_ratio": plan.recompute_ratio,
        "step_seconds": plan.step_seconds,
        "recomputed_more_than_once": bool(plan.stops),
    }


def mib(figures: Figures) -> str:
    return f"{figures['peak_bytes'] / MIB:.0f}"


def change(figures: Figures, base: Figures, key: str = "peak_bytes") -> float:
    """By what part a figure is above another."""
    return figures[key] / base[key] - 1


def span(values: Iterable[float]) -> str:
    low, high = min(values := list(values)), max(values)
    return f"{low:.0%} to {high:.0%}"

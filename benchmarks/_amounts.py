"""Beliefs about how much checkpointing saves, what it costs, and how that grows with depth."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._beliefs import (
    Figures,
    Section,
    built,
    change,
    figures_of,
    mib,
    planner_of,
    quietly,
    span,
)
from gcpass._comparison import Comparison, ComparisonRow, match_of
from gcpass._estimate import Planner
from gcpass._plan import Plan

MODELS = ("resnet", "vit", "gpt2", "llama", "t5")
DEPTHS = (8, 16, 32, 64, 128)
MEASURED = Path(__file__).parent / "results" / "compare.jsonl"
_TENTH = 1.1
_HALVINGS = 5

# -- how much, and for how long -------------------------------------------------------------------


def _find_savings(hardware: str) -> Figures:
    models = {}
    for name in MODELS:
        planner = planner_of(built(name), hardware)
        none, block = planner.keeping_all, planner.under("per_block")
        plans = {
            "none": none,
            "per_block": block,
            "at_its_peak": planner.cheapest(block.predicted_peak_bytes),
            "for_a_tenth": _smallest_for(planner, _TENTH * none.step_seconds),
        }
        models[name] = {key: figures_of(plan) for key, plan in plans.items()}
    return {"models": models, "measured": _measured_savings()}


def _smallest_for(planner: Planner, step_seconds: float) -> Plan:
    """The smallest peak found that takes no longer, by halving the range of budgets."""
    low, high = planner.smallest.predicted_peak_bytes, planner.keeping_all.predicted_peak_bytes
    best = planner.fastest
    for _ in range(_HALVINGS):
        budget = (low + high) // 2
        plan = planner.cheapest(budget)
        if plan.step_seconds > step_seconds:
            low = budget
            continue
        high = budget
        best = min(best, plan, key=lambda p: p.predicted_peak_bytes)
    return best


def _measured_savings() -> Figures:
    """By model, from the record of `gcpass compare`: what per_block and gcpass change."""
    rows = Comparison.from_jsonl(MEASURED.read_text()).rows
    none = {r.model: r for r in rows if r.label == "none" and r.status == "ok"}
    pairs = [(r, match_of(r, rows)) for r in rows if r.label == "per_block" and r.model in none]

    def less(row: ComparisonRow) -> float:
        base = none[row.model]
        assert row.measured_peak_bytes is not None
        assert base.measured_peak_bytes is not None
        return row.measured_peak_bytes / base.measured_peak_bytes - 1

    def longer(row: ComparisonRow) -> float:
        times = row.times_longer(none[row.model])
        assert times is not None
        return times - 1

    return {
        row.model: {
            "peak_change": less(row),
            "step_change": longer(row),
            "gcpass_peak_change": less(other),
            "gcpass_step_change": longer(other),
        }
        for row, other in pairs
        if other is not None and row.is_planned and other.is_planned
    }


def _tell_savings(found: Figures) -> list[str]:
    lines = [
        '## "It saves 30 to 50% of the memory for about 20% of time"; "it costs 30 to 40%, not 100%"',
        "",
        "`per_block` (`gradient_checkpointing=True`) and gcpass at the same peak, against keeping all "
        "that the backward reads. Step times are of forward, backward and recomputation. The last "
        "column is the smallest peak found for at most a tenth more step time. Peaks in MiB.",
        "",
        "| `paper` size | nothing recomputed | `per_block` | its step time | gcpass at that peak | "
        "gcpass for 10% |",
        "|---|---|---|---|---|---|",
    ]
    saved, cost, own = [], [], []
    for name, plans in found["models"].items():
        none, block = plans["none"], plans["per_block"]
        saved.append(-change(block, none))
        cost.append(change(block, none, "step_seconds"))
        own.append(change(plans["at_its_peak"], none, "step_seconds"))
        least = plans["for_a_tenth"]
        lines.append(
            f"| `{name}` | {mib(none)} | {mib(block)} ({-saved[-1]:+.0%}) | {cost[-1]:+.0%} "
            f"| {own[-1]:+.0%} | {mib(least)} ({change(least, none):+.0%}) |"
        )
    return [
        *lines,
        "",
        f"Checkpointing each block saves {span(saved)} of the peak here, for {span(cost)} more time: "
        "a forward is about a third of a step, so that running all of it again cannot cost 100%. At "
        f"the same peak the least recomputation costs {span(own)}.",
        *_tell_measured(found["measured"]),
    ]


def _tell_measured(found: Figures) -> list[str]:
    def said(key: str) -> str:
        values = [figures[key] for figures in found.values()]
        return f"{span(values)} (median {statistics.median(values):+.0%})"

    return [
        "",
        f"Measured on the CPU, {len(found)} models at `cpu` size: `per_block` changes the peak by "
        f"{said('peak_change')} and the step time by {said('step_change')}; gcpass within that peak, the "
        f"peak by {said('gcpass_peak_change')} and the step time by {said('gcpass_step_change')}.",
    ]


# -- depth ----------------------------------------------------------------------------------------

_WAYS: dict[str, dict[str, Any]] = {
    "nothing recomputed": {"policy": "none"},
    "`per_block`": {"policy": "per_block"},
    "`sqrt`": {"policy": "sqrt"},
    "gcpass, each once": {"memory_budget": 1, "solver": "segments"},
    "gcpass, again and again": {"memory_budget": 1},
}


def _find_depth(hardware: str) -> Figures:
    ways: Figures = {}
    for way, options in _WAYS.items():
        plans = [
            quietly(
                *built("mlp", "tiny", layers=n, width=64, batch=32768), hardware=hardware, **options
            )
            for n in DEPTHS
        ]
        peaks = [plan.predicted_peak_bytes for plan in plans]
        exponent = float(np.polyfit(np.log(DEPTHS), np.log(peaks), 1)[0])
        ways[way] = {"plans": [figures_of(plan) for plan in plans], "exponent": exponent}
    return {"depths": list(DEPTHS), "ways": ways}


def _tell_depth(found: Figures) -> list[str]:
    depths, ways = found["depths"], found["ways"]
    lines = [
        '## "Memory goes from O(L) to O(sqrt L)"',
        "",
        "The smallest peak in MiB of an MLP of L layers whose weights are small against its activations "
        "(width 64, batch 32768), its recomputation as a multiple of the forward, and the exponent of L "
        f"fitted over L = {depths[0]} to {depths[-1]}.",
        "",
        "| way | " + " | ".join(f"L = {n}" for n in depths) + " | exponent |",
        "|---" * (len(depths) + 2) + "|",
    ]
    for way, figures in ways.items():
        cells = " | ".join(f"{mib(p)}, {p['recompute_ratio']:.2f}" for p in figures["plans"])
        lines.append(f"| {way} | {cells} | {figures['exponent']:.2f} |")
    exponent = {way: f"L^{figures['exponent']:.2f}" for way, figures in ways.items()}
    deepest = {way: figures["plans"][-1] for way, figures in ways.items()}
    once, again = deepest["gcpass, each once"], deepest["gcpass, again and again"]
    return [
        *lines,
        "",
        f"So it does: {exponent['`sqrt`']} for Chen's segments, where keeping everything grows as "
        f"{exponent['nothing recomputed']} and `per_block` as {exponent['`per_block`']}. Segments chosen "
        f"freely grow as {exponent['gcpass, each once']}, and at L = {depths[-1]} hold "
        f"{once['peak_bytes'] / deepest['`sqrt`']['peak_bytes']:.0%} of what Chen's do. With values "
        f"run again more than once, as Revolve does, it is {exponent['gcpass, again and again']}, for "
        f"{again['recompute_ratio']:.2f} forwards of recomputation at L = {depths[-1]}.",
    ]


# -- the best interval ----------------------------------------------------------------------------

_COUNTS = (1, 2, 4, 8, 16, 32)
_LAYERS = 32
_CHAINS: dict[str, Callable[[], Any]] = {
    "mlp (32 layers, width 64)": lambda: built("mlp", "tiny", layers=_LAYERS, batch=32768),
    "narrow Llama": lambda: built("narrow"),
}


def _find_interval(hardware: str) -> Figures:
    models = {}
    for label, build in _CHAINS.items():
        every = {k: quietly(*build(), hardware=hardware, policy=f"every_k:{k}") for k in _COUNTS}
        none = quietly(*build(), hardware=hardware, policy="none")
        mine = quietly(*build(), hardware=hardware, memory_budget=1, solver="segments")
        boundary = (every[1].saved_bytes - every[2].saved_bytes) / (_LAYERS / 2)
        inside = none.saved_bytes / _LAYERS
        models[label] = {
            "every": {str(k): figures_of(plan) for k, plan in every.items()},
            "gcpass": figures_of(mine),
            "inside_bytes": inside,
            "boundary_bytes": boundary,
            "best_interval": (_LAYERS * boundary / inside) ** 0.5,
        }
    return {"layers": _LAYERS, "models": models}


def _tell_interval(found: Figures) -> list[str]:
    lines = [
        "## The best interval",
        "",
        "With L equal blocks, each with b bytes at its boundary and a bytes inside, segments of k blocks "
        "hold (L/k) b + k a: the first term is kept, the second is the one segment that is being run "
        "again. Its minimum is at k = sqrt(L b / a), which is Chen's sqrt(L) only where a block holds no "
        "more inside than at its boundary. The least recomputation is not at equal segments at all: "
        "early ones may be longer, for less is alive when their backward comes. Peaks in MiB.",
        "",
        "| model | L | a / b | k by the formula | "
        + " | ".join(f"k = {k}" for k in _COUNTS)
        + " | gcpass's smallest |",
        "|---" * (5 + len(_COUNTS)) + "|",
    ]
    for label, figures in found["models"].items():
        cells = " | ".join(mib(figures["every"][str(k)]) for k in _COUNTS)
        ratio = figures["inside_bytes"] / figures["boundary_bytes"]
        lines.append(
            f"| {label} | {found['layers']} | {ratio:.1f} | {figures['best_interval']:.1f} | {cells} "
            f"| {mib(figures['gcpass'])} |"
        )
    return [
        *lines,
        "",
        "What lies outside the blocks (embedding, head, loss) and the gradients add to every column; where "
        "the peak is theirs, no interval helps.",
    ]


SECTIONS = {
    "savings": Section(_find_savings, _tell_savings),
    "depth": Section(_find_depth, _tell_depth),
    "interval": Section(_find_interval, _tell_interval),
}

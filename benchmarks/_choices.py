"""Beliefs about what should be recomputed."""

from __future__ import annotations

import re
from typing import Any

from benchmarks._beliefs import (
    MIB,
    Figures,
    Section,
    built,
    change,
    figures_of,
    mib,
    planner_of,
    quietly,
)

_CLASSES = (
    ("embedding", r"embed|wte|wpe|rotary"),
    ("norms", r"norm|ln_"),
    ("attention", r"attn|attention"),
    ("MLP", r"mlp|fc\d|down_proj|up_proj"),
    ("head and loss", r"lm_head|^model$|^$"),
)
_PART = 0.6  # of the peak of keeping everything


def _class_of(module: str) -> str:
    return next(
        (name for name, pattern in _CLASSES if re.search(pattern, module)), "residual stream"
    )


def _find_blocks(hardware: str) -> Figures:
    free = quietly(*built("llama"), hardware=hardware, policy="none")
    budget = int(_PART * free.predicted_peak_bytes)
    plan = quietly(*built("llama"), hardware=hardware, memory_budget=budget)
    parts: dict[str, Figures] = {}
    for row in plan.rows():
        empty = {"wanted_bytes": 0, "recomputed_bytes": 0, "recompute_seconds": 0.0}
        part = parts.setdefault(_class_of(row.module), empty)
        part["wanted_bytes"] += row.nbytes
        if row.decision == "recomputed":
            part["recomputed_bytes"] += row.nbytes
            part["recompute_seconds"] += row.seconds
    return {"plan": figures_of(plan), "parts": parts}


def _tell_blocks(found: Figures) -> list[str]:
    parts: dict[str, Figures] = found["parts"]
    seconds = sum(part["recompute_seconds"] for part in parts.values()) or 1.0

    def bytes_again(name: str) -> float:
        return parts[name]["recomputed_bytes"] / parts[name]["wanted_bytes"]

    def time(name: str) -> float:
        return parts[name]["recompute_seconds"] / seconds

    lines = [
        '## "Only checkpoint transformer blocks, never the embedding, the LM head or norms"',
        "",
        f"`llama`, `paper` size, at {_PART:.0%} of the peak of keeping everything ({mib(found['plan'])} "
        f"MiB, {found['plan']['recompute_ratio']:.0%} of the forward recomputed):",
        "",
        "| part | values that the backward wants, MiB | of them recomputed | of all recomputation time |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {parts[name]['wanted_bytes'] / MIB:.0f} | {bytes_again(name):.0%} "
        f"| {time(name):.0%} |"
        for name in sorted(parts, key=lambda name: -parts[name]["wanted_bytes"])
    ]
    return [
        *lines,
        "",
        f"Whole blocks are not the unit: {bytes_again('attention'):.0%} of attention's bytes are "
        f"recomputed and {bytes_again('MLP'):.0%} of the MLPs'. Nor are norms left out: "
        f"{bytes_again('norms'):.0%} of their bytes are, for {time('norms'):.0%} of the time.",
    ]


def _find_attention(hardware: str) -> Figures:
    models: Figures = {}
    for name, kind in (("vit", "unfused"), ("gpt2", "unfused"), ("llama", "fused")):
        planner = planner_of(built(name), hardware)
        selective = planner.under("selective_attention")
        plans = {
            "none": planner.keeping_all,
            "free": planner.fastest,
            "selective": selective,
            "at_its_peak": planner.cheapest(selective.predicted_peak_bytes),
        }
        models[name] = {"attention": kind} | {k: figures_of(plan) for k, plan in plans.items()}
    return {"models": models}


def _tell_attention(found: Figures) -> list[str]:
    models: dict[str, Any] = found["models"]
    lines = [
        '## "Attention\'s QK^T softmax is the bulk; recompute just that"',
        "",
        "`selective_attention` against keeping everything, and gcpass at the peak of the former. Peaks in "
        "MiB, recomputation as a part of the forward.",
        "",
        "| `paper` size | attention | nothing recomputed | `selective_attention` | its recomputation "
        "| gcpass's at that peak |",
        "|---|---|---|---|---|---|",
    ]
    saved = {}
    for name, figures in models.items():
        none, selective = figures["none"], figures["selective"]
        saved[name] = -change(selective, none)
        lines.append(
            f"| `{name}` | {figures['attention']} | {mib(none)} | {mib(selective)} ({-saved[name]:+.0%}) "
            f"| {selective['recompute_ratio']:.1%} | {figures['at_its_peak']['recompute_ratio']:.1%} |"
        )
    bulk = [f"`{name}`" for name, part in saved.items() if part > 0.5]
    return [
        *lines,
        "",
        f"It saves more than half of the peak in {', '.join(bulk) or 'none of these'}. Where attention is "
        "fused there are no weights to recompute, and what the policy saves is the elementwise part "
        "around them.",
    ]


def _find_flash(hardware: str) -> Figures:
    plans: Figures = {}
    for kind in ("eager", "sdpa"):
        fn, args = built("llama")
        fn.model.set_attn_implementation(kind)
        planner = planner_of((fn, args), hardware)
        plans[kind] = {
            "none": figures_of(planner.keeping_all),
            "fastest": figures_of(planner.fastest),
        }
    return plans


def _tell_flash(found: Figures) -> list[str]:
    unfused, fused = found["eager"]["none"], found["sdpa"]["none"]
    best = found["eager"]["fastest"]
    return [
        '## "Flash attention gives it for free"',
        "",
        f"`llama`, `paper` size, nothing recomputed: {mib(unfused)} MiB with unfused attention, "
        f"{mib(fused)} MiB with the fused kernel ({change(fused, unfused):+.0%}), and "
        f"{change(fused, unfused, 'step_seconds'):+.0%} step time. What it saves are the attention "
        "weights, without any plan; the other activations are as large as before. gcpass without a "
        f"budget has a peak of {mib(best)} MiB with unfused attention.",
    ]


SECTIONS = {
    "blocks": Section(_find_blocks, _tell_blocks),
    "attention": Section(_find_attention, _tell_attention),
    "flash": Section(_find_flash, _tell_flash),
}

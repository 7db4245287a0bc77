"""What people say about activation checkpointing, and what the planner and the measurements say.

    python -m benchmarks.folklore --out docs/folklore.md

Plans are predictions for one device (`--hardware`), made on fake tensors; nothing is run. Measured
figures are read from the record of `gcpass compare` in `benchmarks/results/compare.jsonl`.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import gcpass
from benchmarks._record import where
from benchmarks._stacking import batches, lora, seven_billion, seventy_billion
from benchmarks.models import build
from gcpass import Plan
from gcpass._comparison import Comparison, ComparisonRow, match_of
from gcpass.fx._plan_call import compare

MIB = 2**20
MODELS = ("resnet", "vit", "gpt2", "llama", "t5")
DEPTHS = (8, 16, 32, 64, 128)
RECORD = Path(__file__).parent / "results" / "compare.jsonl"

Section = Callable[[str], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--only", nargs="*", default=[], help="names of sections")
    options = parser.parse_args()
    sections: dict[str, Section] = {
        "savings": savings,
        "depth": depth,
        "interval": interval,
        "blocks": blocks_only,
        "attention": attention,
        "flash": flash,
        "lora": lora,
        "seven_billion": seven_billion,
        "batches": batches,
        "seventy_billion": seventy_billion,
    }
    lines = _head(options.hardware)
    for name, section in sections.items():
        if not options.only or name in options.only:
            print(name, file=sys.stderr, flush=True)
            lines += ["", *section(options.hardware)]
    options.out.write_text("\n".join(lines) + "\n")


def _head(hardware: str) -> list[str]:
    made = where()
    return [
        "# What people say about checkpointing",
        "",
        f"Made by `python -m benchmarks.folklore --out docs/folklore.md` ({made['date'][:10]}, gcpass "
        f"{made['gcpass']}, torch {made['torch']}). Predictions are for the `{hardware}` profile, with "
        "Inductor's fusion, of models traced on the CPU (where attention with dropout is not fused); "
        "peaks are what a step holds beyond weights and inputs, gradients included. Measured figures "
        "are of the zoo's `cpu` size on two CPU cores ([compare.md](compare.md)).",
    ]


# -- how much, and for how long -------------------------------------------------------------------


def savings(hardware: str) -> list[str]:
    lines = [
        '## "It saves 30 to 50% of the memory for about 20% of time"; "it costs 30 to 40%, not 100%"',
        "",
        "`per_block` (`gradient_checkpointing=True`) and gcpass at the same peak, against keeping all "
        "that the backward reads. Step times are of forward, backward and recomputation. The last "
        "column is the smallest peak that gcpass reaches for a tenth more step time.",
        "",
        "| `paper` size | nothing recomputed | `per_block` | its step time | gcpass at that peak | "
        "gcpass for 10% |",
        "|---|---|---|---|---|---|",
    ]
    saved, cost, own = [], [], []
    for name in MODELS:
        fn, args = _paper(name)
        found = compare(
            fn,
            args,
            None,
            hardware=hardware,
            codegen="inductor",
            points=24,
            policies=["none", "per_block"],
        )
        none, block = found.others
        fn, args = _paper(name)
        mine = gcpass.plan(
            fn,
            args,
            memory_budget=block.predicted_peak_bytes,
            hardware=hardware,
            on_infeasible="best",
        )
        cheap = [p for p in found.points if p.step_seconds <= 1.1 * none.step_seconds]
        least = min(cheap, key=lambda p: p.predicted_peak_bytes)
        saved.append(1 - block.predicted_peak_bytes / none.predicted_peak_bytes)
        cost.append(block.step_seconds / none.step_seconds - 1)
        own.append(mine.step_seconds / none.step_seconds - 1)
        lines.append(
            f"| `{name}` | {_mib(none)} | {_mib(block)} ({-saved[-1]:+.0%}) | {cost[-1]:+.0%} "
            f"| {own[-1]:+.0%} | {_mib(least)} ({_change(least, none)}) |"
        )
    lines += [
        "",
        f"Checkpointing each block saves {_span(saved)} of the peak here, for {_span(cost)} more time: "
        "a forward is about a third of a step, so that running all of it again cannot cost 100%. At "
        f"the same peak the least recomputation costs {_span(own)}.",
    ]
    return [*lines, *_measured_savings()]


def _measured_savings() -> list[str]:
    if not RECORD.exists():
        return []
    rows = Comparison.from_jsonl(RECORD.read_text()).rows
    none = {r.model: r for r in rows if r.label == "none" and r.status == "ok"}
    pairs = [(r, match_of(r, rows)) for r in rows if r.label == "per_block" and r.model in none]
    found = [(r, m, none[r.model]) for r, m in pairs if m and m.status == r.status == "ok"]
    if not found:
        return []

    def times(pick: Callable[[ComparisonRow, ComparisonRow], ComparisonRow]) -> list[float]:
        return [(pick(r, m).seconds_median or 0) / (n.seconds_median or 1) - 1 for r, m, n in found]

    peaks = [1 - (r.measured_peak_bytes or 0) / (n.measured_peak_bytes or 1) for r, _, n in found]
    block, mine = times(lambda r, _: r), times(lambda _, m: m)
    return [
        "",
        f"Measured on the CPU, {len(found)} models: `per_block` saves {_span(peaks)} of the peak "
        f"(median {statistics.median(peaks):.0%}) and changes the step time by {_span(block)} (median "
        f"{statistics.median(block):+.0%}); gcpass at that peak by {_span(mine)} (median "
        f"{statistics.median(mine):+.0%}). There new memory costs time too, so that keeping less can be "
        "faster than keeping all.",
    ]


# -- depth ----------------------------------------------------------------------------------------


def depth(hardware: str) -> list[str]:
    ways: dict[str, dict[str, Any]] = {
        "nothing recomputed": {"policy": "none"},
        "`per_block`": {"policy": "per_block"},
        "`sqrt`": {"policy": "sqrt"},
        "gcpass, each once": {"memory_budget": 1, "solver": "segments", "on_infeasible": "best"},
        "gcpass, again and again": {"memory_budget": 1, "on_infeasible": "best"},
    }
    lines = [
        '## "Memory goes from O(L) to O(sqrt L)"',
        "",
        "The smallest peak in MiB of an MLP of L layers whose weights are small against its activations "
        "(width 64, batch 32768), its recomputation as a multiple of the forward, and the exponent of L "
        f"fitted over L = {DEPTHS[0]} to {DEPTHS[-1]}.",
        "",
        "| way | " + " | ".join(f"L = {n}" for n in DEPTHS) + " | exponent |",
        "|---" * (len(DEPTHS) + 2) + "|",
    ]
    exponents = {}
    for way, options in ways.items():
        plans = [_deep(n, hardware, options) for n in DEPTHS]
        peaks = [plan.predicted_peak_bytes for plan in plans]
        exponents[way] = float(np.polyfit(np.log(DEPTHS), np.log(peaks), 1)[0])
        cells = " | ".join(f"{_mib(p)}, {p.recompute_ratio:.2f}" for p in plans)
        lines.append(f"| {way} | {cells} | {exponents[way]:.2f} |")
    lines += [
        "",
        f"So it does: L^{exponents['`sqrt`']:.2f} for Chen's segments, where keeping everything grows as "
        f"L^{exponents['nothing recomputed']:.2f}. Chosen freely, segments do no better in the exponent "
        f"(L^{exponents['gcpass, each once']:.2f}) and much better in size; `per_block` stays linear "
        f"(L^{exponents['`per_block`']:.2f}). Values run again more than once, as Revolve does, break the "
        f"square root (L^{exponents['gcpass, again and again']:.2f}), for more than one forward of time.",
    ]
    return lines


def _deep(layers: int, hardware: str, options: dict[str, Any]) -> Plan:
    with gcpass.fake_mode():
        fn, args = build("mlp", "tiny", layers=layers, width=64, batch=32768)
    return _quietly(fn, args, hardware=hardware, **options)


def interval(hardware: str) -> list[str]:
    counts = (1, 2, 4, 8, 16, 32)
    lines = [
        "## The best interval",
        "",
        "With L equal blocks, each with b bytes at its boundary and a bytes inside, segments of k blocks "
        "hold (L/k) b + k a: the first term is kept, the second is the one segment that is being run "
        "again. Its minimum is at k = sqrt(L b / a), which is Chen's sqrt(L) only where a block holds no "
        "more inside than at its boundary. The least recomputation is not at equal segments at all: "
        "early ones may be longer, for less is alive when their backward comes.",
        "",
        "| model | L | a / b | k by the formula | "
        + " | ".join(f"k = {k}" for k in counts)
        + " | gcpass's smallest |",
        "|---" * (5 + len(counts)) + "|",
    ]
    for label, build_one, layers in (
        ("mlp (32 layers, width 64)", lambda: build("mlp", "tiny", layers=32, batch=32768), 32),
        ("narrow Llama", lambda: build("narrow", "paper"), 32),
    ):
        plans: dict[Any, Plan] = {}
        for key in ("none", *counts):
            with gcpass.fake_mode():
                fn, args = build_one()
            policy = key if key == "none" else f"every_k:{key}"
            plans[key] = _quietly(fn, args, hardware=hardware, policy=policy)
        with gcpass.fake_mode():
            fn, args = build_one()
        mine = _quietly(fn, args, hardware=hardware, memory_budget=1, solver="segments")
        boundary = (plans[1].saved_bytes - plans[2].saved_bytes) / (layers / 2)
        inside = plans["none"].saved_bytes / layers
        best = (layers * boundary / inside) ** 0.5
        cells = " | ".join(_mib(plans[k]) for k in counts)
        lines.append(
            f"| {label} | {layers} | {inside / boundary:.1f} | {best:.1f} | {cells} | {_mib(mine)} |"
        )
    return [
        *lines,
        "",
        "What lies outside the blocks (embedding, head, loss) and the gradients add to every column; where "
        "the peak is theirs, no interval helps, and the planner recomputes nothing for it.",
    ]


# -- what to recompute ----------------------------------------------------------------------------


_CLASSES = (
    ("embedding", r"embed|wte|wpe|rotary"),
    ("norms", r"norm|ln_"),
    ("attention", r"attn|attention"),
    ("MLP", r"mlp|fc\d|down_proj|up_proj"),
    ("head and loss", r"lm_head|^model$|^$"),
)


def _class_of(module: str) -> str:
    return next(
        (name for name, pattern in _CLASSES if re.search(pattern, module)), "residual stream"
    )


def blocks_only(hardware: str) -> list[str]:
    fn, args = _paper("llama")
    free = _quietly(fn, args, hardware=hardware, policy="none")
    fn, args = _paper("llama")
    plan = _quietly(fn, args, hardware=hardware, memory_budget=int(0.6 * free.predicted_peak_bytes))
    totals: dict[str, list[float]] = {}
    for row in plan.rows():
        total = totals.setdefault(_class_of(row.module), [0.0, 0.0, 0.0])
        again = row.decision == "recomputed"
        total[0] += row.nbytes
        total[1] += row.nbytes * again
        total[2] += row.seconds * again
    seconds = sum(total[2] for total in totals.values()) or 1.0
    lines = [
        '## "Only checkpoint transformer blocks, never the embedding, the LM head or norms"',
        "",
        f"`llama`, `paper` size, at 60% of the peak of keeping everything ({_mib(plan)} MiB, "
        f"{plan.recompute_ratio:.0%} of the forward recomputed):",
        "",
        "| part | values that the backward wants, MiB | of them recomputed | of all recomputation time |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {total[0] / MIB:.0f} | {total[1] / total[0]:.0%} | {total[2] / seconds:.0%} |"
        for name, total in sorted(totals.items(), key=lambda item: -item[1][0])
    ]
    norms = totals.get("norms", [1.0, 0.0, 0.0])
    return [
        *lines,
        "",
        "Whole blocks are the wrong unit. Norms are the first thing to recompute, not the last: "
        f"{norms[1] / norms[0]:.0%} of their bytes go, for {norms[2] / seconds:.0%} of the time. Of a block, "
        "elementwise results go before matrix products.",
    ]


def attention(hardware: str) -> list[str]:
    lines = [
        '## "Attention\'s QK^T softmax is the bulk; recompute just that"',
        "",
        "`selective_attention` against keeping everything, and gcpass at the peak of the former.",
        "",
        "| `paper` size | attention | nothing recomputed | `selective_attention` | its recomputation | "
        "gcpass's at that peak |",
        "|---|---|---|---|---|---|",
    ]
    for name, kind in (("vit", "unfused"), ("gpt2", "unfused"), ("llama", "fused")):
        fn, args = _paper(name)
        found = compare(
            fn,
            args,
            None,
            hardware=hardware,
            codegen="inductor",
            points=2,
            policies=["none", "selective_attention"],
        )
        none, selective = found.others
        fn, args = _paper(name)
        mine = _quietly(fn, args, hardware=hardware, memory_budget=selective.predicted_peak_bytes)
        lines.append(
            f"| `{name}` | {kind} | {_mib(none)} | {_mib(selective)} ({_change(selective, none)}) "
            f"| {selective.recompute_ratio:.1%} | {mine.recompute_ratio:.1%} |"
        )
    return [
        *lines,
        "",
        "True where attention is not fused and the sequence is long; where it is fused there are no "
        "weights to recompute, and the policy saves only what a compiler's partitioner would anyway.",
    ]


def flash(hardware: str) -> list[str]:
    plans = {}
    for kind in ("eager", "sdpa"):
        fn, args = _paper("llama")
        fn.model.set_attn_implementation(kind)
        plans[kind] = _quietly(fn, args, hardware=hardware, policy="none")
    unfused, fused = plans["eager"], plans["sdpa"]
    return [
        '## "Flash attention gives it for free"',
        "",
        f"`llama`, `paper` size, nothing recomputed: {_mib(unfused)} MiB with unfused attention, "
        f"{_mib(fused)} MiB with the fused kernel ({_change(fused, unfused)}). So it does, as far as the "
        "attention weights go, and without any plan; the rest of the activations is as large as before.",
    ]


# -- helpers --------------------------------------------------------------------------------------


def _paper(name: str) -> Any:
    with gcpass.fake_mode():
        return build(name, "paper")


def _quietly(fn: Any, args: Any, **options: Any) -> Plan:
    """A plan; of a budget that is too small, the smallest."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gcpass.plan(fn, args, **{"on_infeasible": "best", **options})


def _mib(plan: Plan) -> str:
    return f"{plan.predicted_peak_bytes / MIB:.0f}"


def _change(plan: Plan, base: Plan) -> str:
    return f"{plan.predicted_peak_bytes / base.predicted_peak_bytes - 1:+.0%}"


def _span(values: Iterable[float]) -> str:
    low, high = min(values := list(values)), max(values)
    return f"{low:.0%} to {high:.0%}"


if __name__ == "__main__":
    main()

"""Tables of what a training step needs, and of what fits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcpass._advice import Advice
from gcpass._estimate import Column, Estimate, named_heads
from gcpass._fit import Fit
from gcpass._training import state_heads
from gcpass._units import format_bytes, format_seconds


def estimate_table(of: Estimate, advice: Sequence[Advice] = ()) -> RenderableType:
    """The heads of memory by column, whether the step fits, and what would help if not."""
    totals = [c.heads.total_nbytes for c in of.columns if c.heads]
    unit, name = (2**30, "GiB") if max(totals) >= 2**30 else (2**20, "MiB")

    def amount(nbytes: int) -> str:
        return "<0.01" if 0 < nbytes < 0.005 * unit else f"{nbytes / unit:.2f}"

    table = Table()
    table.add_column(f"{name} on each device" if of.training.world_size > 1 else name)
    for column in of.columns:
        table.add_column(column.name, justify="right")
    for head in named_heads(of.state):
        table.add_row(
            head, *(amount(named_heads(c.heads)[head]) if c.heads else "-" for c in of.columns)
        )
    table.add_section()
    total = (amount(c.heads.total_nbytes) if c.heads else "-" for c in of.columns)
    table.add_row("total", *total, style="bold")
    table.add_row(f"fits in {amount(of.device.usable_nbytes)}", *map(_yes, of.columns))
    table.add_row("recomputation", *map(_recomputation, of.columns))
    table.add_row("step", *(format_seconds(c.step_seconds) if c.plan else "-" for c in of.columns))
    lines: list[RenderableType] = [Text(headline(of), "bold"), table, Text(verdict(of))]
    complete = of.case.sizes.whole.gradients_nbytes
    made = of.best.heads.gradients_nbytes if of.best.heads else 0
    if made < complete // 2 and not of.training.divides_gradients:
        said = f"All gradients are {amount(complete)} {name}; at the peak most are not made yet."
        lines.append(Text(said))
    if advice:
        lines.append(Text("What would help, in order, as the same planner prices it:"))
        lines.append(_advice_table(advice))
    lines += [Text(f"note: {note}") for note in of.case.notes]
    return Group(*lines)


def headline(of: Estimate, *, sized: bool = True) -> str:
    """What is trained, and how, in one line; without its size where several are compared."""
    case, training = of.case, of.training
    parts = [case.workload.target]
    if case.workload.is_built and sized:
        parts.append(f"batch {case.batch}" + (f" x {case.seq} tokens" if case.seq else ""))
    if case.workload.is_built:
        parts.append(case.workload.dtype)
    if case.workload.lora or case.workload.qlora:
        parts.append(("Q" if case.workload.qlora else "") + str(case.workload.lora))
    parts.append(training.optimizer + (" + master weights" if training.master_weights else ""))
    if training.zero:
        parts.append(f"ZeRO-{training.zero} on {training.world_size}")
    if case.workload.sequence_parallel > 1:
        parts.append(f"sequences over {case.workload.sequence_parallel}")
    parts.append(f"{format_bytes(of.device.memory_nbytes)}, {of.case.problem.hardware} prices")
    return ", ".join(parts)


def verdict(of: Estimate) -> str:
    """Whether it fits, at what cost, and how far from the best that may be."""
    reserve = f"{format_bytes(of.device.reserve_nbytes)} of the device are left free"
    plan = of.best.plan
    assert plan is not None
    if of.is_free:
        free = "; what gcpass recomputes takes next to no time" if plan.recompute_ratio else ""
        return f"Fits. No recomputation is needed{free} ({reserve})."
    assert of.best.heads is not None
    if of.fits:
        least = (
            f"no plan recomputes less than {plan.lower_bound_ratio:.1%}; gap {plan.gap:.1%}"
            if not plan.stops
            else "no bound: some is recomputed more than once"
        )
        return (
            f"Fits with recomputation: {plan.recompute_ratio:.1%} of the forward, "
            f"{of.overhead:.1%} of the step ({least}; {reserve})."
        )
    over = of.best.heads.total_nbytes - of.device.usable_nbytes
    alone = " before any activation" if of.budget_nbytes <= 0 else ""
    return (
        f"Does not fit{alone}: the smallest peak found is {format_bytes(over)} too large, and most "
        f"of it is {of.largest_head} ({reserve})."
    )


def _yes(column: Column) -> str:
    return "not available" if column.plan is None else "yes" if column.fits else "no"


def _recomputation(column: Column) -> str:
    return "-" if column.plan is None else f"{column.plan.recompute_ratio:.1%}"


def _advice_table(advice: Sequence[Advice]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for made in advice:
        best = made.estimate.best
        assert best.heads is not None
        if made.estimate.is_free:
            said = "fits, nothing recomputed"
        elif made.estimate.fits:
            said = f"fits, at most {made.estimate.overhead:.1%} slower than without a bound"
        else:
            largest = made.estimate.largest_head
            said = f"still {format_bytes(best.heads.total_nbytes)}, most of it {largest}"
        table.add_row(made.change, said)
    return table


def fit_table(of: Fit, unit: str) -> RenderableType:
    """The sizes that were planned and fit, the fastest marked."""
    if not of.rows:
        assert of.too_large is not None
        return Group(estimate_table(of.too_large))
    first = of.rows[0][1]
    table = Table()
    for name in (of.over, "total GiB", "recomputation", "step", f"{unit}/s", ""):
        table.add_column(name, justify="right" if name else "left")
    for size, row in of.rows:
        assert row.best.heads is not None
        assert row.best.plan is not None
        table.add_row(
            str(size),
            f"{row.best.heads.total_nbytes / 2**30:.2f}",
            "none needed" if row.is_free else f"{row.best.plan.recompute_ratio:.1%}",
            format_seconds(row.best.step_seconds),
            f"{throughput(row):.4g}",
            " and ".join(
                word
                for word, marked in (("largest", of.largest), ("fastest", of.fastest))
                if marked == size
            ),
        )
    said = f"The largest {of.over} that fits is {of.largest}; the fastest is {of.fastest}."
    said += " Throughput is predicted, for one device."
    return Group(Text(headline(first, sized=False), "bold"), table, Text(said))


def throughput(of: Estimate) -> float:
    """Tokens, or images, a second on one device."""
    return of.samples_per_second * (of.case.seq or 1)


# -- JSON ---------------------------------------------------------------------------------------


def estimate_record(of: Estimate, advice: Sequence[Advice] = ()) -> dict[str, Any]:
    """All numbers of an estimate, bytes and seconds in their names."""
    sizes = of.case.sizes
    return {
        "workload": dataclasses.asdict(of.case.workload),
        "batch": of.case.batch,
        "seq": of.case.seq,
        "training": dataclasses.asdict(of.training),
        "hardware": of.case.problem.hardware,
        "codegen": of.case.problem.codegen,
        "device": {**dataclasses.asdict(of.device), "usable_nbytes": of.device.usable_nbytes},
        "sizes": {
            "parameters": sizes.parameters,
            "trained_parameters": sizes.trained,
            "weights_nbytes": sizes.whole.weights_nbytes,
            "gradients_nbytes": sizes.whole.gradients_nbytes,
            "optimizer_nbytes": state_heads(of.training, sizes).optimizer_nbytes,
            "inputs_nbytes": sizes.inputs_nbytes,
        },
        "budget_nbytes": of.budget_nbytes,
        "fits": of.fits,
        "needs_recomputation": not of.is_free,
        "overhead": of.overhead,
        "fastest_step_seconds": of.fastest_seconds,
        "largest_head": of.largest_head,
        "samples_per_second": of.samples_per_second,
        "columns": [_column_record(c) for c in of.columns],
        "verdict": verdict(of),
        "advice": [
            {"change": made.change, "estimate": estimate_record(made.estimate)} for made in advice
        ],
        "notes": list(of.case.notes),
    }


def _column_record(column: Column) -> dict[str, Any]:
    plan, heads = column.plan, column.heads
    if plan is None or heads is None:
        return {"name": column.name, "available": False}
    return {
        "name": column.name,
        "available": True,
        "fits": column.fits,
        "heads": {**dataclasses.asdict(heads), "total_nbytes": heads.total_nbytes},
        "peak_nbytes": plan.predicted_peak_bytes,
        "saved_nbytes": plan.saved_bytes,
        "recompute_seconds": plan.recompute_seconds,
        "forward_seconds": plan.forward_seconds,
        "recompute_ratio": plan.recompute_ratio,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "gap": plan.gap,
        "recomputed_more_than_once": bool(plan.stops),
        "step_seconds": column.step_seconds,
    }


def fit_record(of: Fit) -> dict[str, Any]:
    """All numbers of a search."""
    return {
        "over": of.over,
        "largest": of.largest,
        "fastest": of.fastest,
        "tried": list(of.tried),
        "rows": [
            {"size": size, "throughput": throughput(row), **estimate_record(row)}
            for size, row in of.rows
        ],
        "too_large": None if of.too_large is None else estimate_record(of.too_large),
    }


def to_json(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1)

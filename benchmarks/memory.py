"""Predicted against measured peak, and step times, of the zoo at `cpu` size.

    python -m benchmarks.memory --codegen inductor --out benchmarks/results/memory-inductor.json

For every model: plain Inductor, gcpass without a budget and at fractions of its unconstrained
peak, and torch's own partitioner at some of its budgets, all compiled in one process from the same
weights, their timed steps interleaved. Each model runs in a process of its own; models already in
the record are left alone, so an interrupted run can be continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.models import NAMES, build

FRACTIONS = (0.8, 0.6, 0.45)
TORCH_BUDGETS = (1.0, 0.5, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--size", default="cpu")
    parser.add_argument("--codegen", default="inductor", choices=("inductor", "eager"))
    parser.add_argument("--fractions", nargs="*", type=float, default=list(FRACTIONS))
    parser.add_argument("--torch-budgets", nargs="*", type=float, default=list(TORCH_BUDGETS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_model(options.one, options)))
        return
    for name in options.models:
        record = json.loads(options.out.read_text()) if options.out.exists() else {}
        if name in record.get("models", {}):
            continue
        print(f"{name} ...", flush=True)
        command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{name} failed", flush=True)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        record = {**record, "where": result.pop("where")}
        record.setdefault("models", {})[name] = result
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print("\n".join(table({name: result})), flush=True)


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every configuration of one model."""
    from benchmarks._record import where
    from gcpass import InfeasibleBudget
    from gcpass.fx._measure import Step
    from gcpass.fx._options import Options, make_request

    fn, args = build(name, options.size)
    configurations: dict[str, Options | None] = {}
    if options.codegen == "inductor":
        configurations["plain inductor"] = None
    for fraction in (None, *options.fractions):
        request = make_request(fraction, None, "auto", "auto", "error")
        label = "gcpass" if fraction is None else f"gcpass {fraction:g}"
        configurations[label] = Options(request=request, codegen=options.codegen)
    for budget in options.torch_budgets:
        request = make_request(None, f"torch:{budget:g}", "auto", "auto", "error")
        configurations[f"torch {budget:g}"] = Options(request=request, codegen=options.codegen)
    steps: dict[str, Step] = {}
    rows: dict[str, dict[str, Any]] = {}
    for label, configuration in configurations.items():
        step = Step(fn, args, None, configuration)
        try:
            step.run()
        except InfeasibleBudget as error:
            rows[label] = {"infeasible": True, "floor_bytes": error.floor_bytes}
            continue
        peak = step.peak_bytes()
        plan = step.plans[0] if len(step.plans) == 1 else None
        rows[label] = {"measured_bytes": peak, **(_plan_numbers(plan) if plan else {})}
        steps[label] = step
        print(label, rows[label], file=sys.stderr, flush=True)
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(options.steps):
        for label, step in steps.items():
            times[label].append(step.seconds())
    for label, seconds in times.items():
        rows[label]["seconds"] = seconds
        rows[label]["seconds_median"] = statistics.median(seconds)
    return {"where": where(), "size": options.size, "codegen": options.codegen, "rows": rows}


def _plan_numbers(plan: Any) -> dict[str, Any]:
    return {
        "budget_bytes": plan.budget_bytes,
        "predicted_bytes": plan.predicted_peak_bytes,
        "recompute_ratio": plan.recompute_ratio,
        "notes": list(plan.notes),
    }


def table(models: dict[str, Any]) -> list[str]:
    """The record as lines of a Markdown table."""
    lines = [
        "| model | configuration | budget MiB | predicted | measured | predicted / measured "
        "| recompute | step time / plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in models.items():
        rows = result["rows"]
        plain = rows.get("plain inductor", rows.get("gcpass", {})).get("seconds_median")
        for label, row in rows.items():
            if row.get("infeasible"):
                floor = row["floor_bytes"] / 2**20
                lines.append(f"| {name} | {label} | infeasible (floor {floor:.1f}) | | | | | |")
                continue
            mib = {k: row[k] / 2**20 for k in row if k.endswith("_bytes") and row[k] is not None}
            measured, predicted = mib["measured_bytes"], mib.get("predicted_bytes")
            lines.append(
                f"| {name} | {label} | {_number(mib.get('budget_bytes'))} | {_number(predicted)} "
                f"| {measured:.1f} | {_number(predicted and predicted / measured, 3)} "
                f"| {_number(row.get('recompute_ratio'), 3)} "
                f"| {_number(plain and row['seconds_median'] / plain, 2)} |"
            )
    return lines


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()

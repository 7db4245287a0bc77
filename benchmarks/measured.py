"""Predicted against measured peaks and step times of the zoo at `cpu` size.

    python -m benchmarks.measured --codegen inductor --out benchmarks/results/inductor.json

For every model: plain Inductor, gcpass without a budget and at fractions of its unconstrained
peak, torch's own partitioner at the one of its budgets whose predicted peak is smallest, and gcpass
at the peak measured there; all compiled in one process from the same weights, their timed steps
interleaved. Each model runs in a process of its own; models already in the record are left alone,
so an interrupted run can be continued (and a finished one shown again). The last lines are a short
table and the figures over all models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._peers import best_torch_policy
from benchmarks._record import plan_numbers, where
from benchmarks._tables import AT_TORCH, FRACTIONS, TORCH, compact, summary, table
from benchmarks.models import NAMES, SEED, build
from gcpass import InfeasibleBudget
from gcpass.fx._measure import Step, rounds
from gcpass.fx._options import Options, make_request

TORCH_BUDGETS = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--size", default="cpu")
    parser.add_argument("--codegen", default="inductor", choices=("inductor", "eager"))
    parser.add_argument("--fractions", nargs="*", type=float, default=list(FRACTIONS))
    parser.add_argument(
        "--torch-budgets", nargs="*", type=float, default=[], help="besides the best"
    )
    parser.add_argument("--no-torch", action="store_true", help="leave torch's partitioner out")
    parser.add_argument("--hardware", default="auto")
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
        command = [sys.executable, "-m", "benchmarks.measured", *sys.argv[1:], "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{name} failed", flush=True)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        record = {**record, "where": result.pop("where")}
        record.setdefault("models", {})[name] = result
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print("\n".join(table({name: result})), flush=True)
    if options.out.exists():
        models = json.loads(options.out.read_text())["models"]
        print("\n".join([*compact(models), "", *summary(models)]))


def measure_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every configuration of one model."""
    fn, args = build(name, options.size)
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}

    def weigh(label: str, configuration: Options | None) -> None:
        step = Step(fn, args, None, configuration)
        try:
            step.run()
        except InfeasibleBudget as error:
            rows[label] = {"infeasible": True, "floor_bytes": error.floor_bytes}
            return
        rows[label] = {"measured_bytes": step.peak_bytes(), **plan_numbers(step.plans)}
        steps[label] = step
        print(label, rows[label], file=sys.stderr, flush=True)

    def chosen(budget: object, policy: str | None = None) -> Options:
        request = make_request(budget, policy, "auto", "error")
        return Options(request=request, codegen=options.codegen, hardware=options.hardware)

    if options.codegen == "inductor":
        weigh("plain inductor", None)
    for fraction in (None, *options.fractions):
        weigh("gcpass" if fraction is None else f"gcpass {fraction:g}", chosen(fraction))
    for budget in options.torch_budgets:
        weigh(f"torch {budget:g}", chosen(None, f"torch:{budget:g}"))
    if not options.no_torch:
        policy = best_torch_policy(
            fn, args, TORCH_BUDGETS, codegen=options.codegen, hardware=options.hardware
        )
        weigh(TORCH, chosen(None, policy))
        rows[TORCH]["policy"] = policy
        weigh(AT_TORCH, chosen(rows[TORCH]["measured_bytes"]))
    times: dict[str, list[float]] = {label: [] for label in steps}
    for labels in rounds(steps, options.steps, SEED):
        for label in labels:
            times[label].append(steps[label].seconds())
    for label, seconds in times.items():
        rows[label]["seconds"] = seconds
        rows[label]["seconds_median"] = statistics.median(seconds)
    return {"where": where(), "size": options.size, "codegen": options.codegen, "rows": rows}


if __name__ == "__main__":
    main()

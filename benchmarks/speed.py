"""How long planning takes: Llamas of 16 to 80 layers, torch's own planner in the same run.

    python -m benchmarks.speed --out benchmarks/results/speed.json

Models are built under `gcpass.fake_mode` and captured once; what is timed starts from the captured
graph: torch's partitioner at a budget of 0.5, gcpass's analysis, one plan at half of the
unconstrained peak, and a frontier. Every flow engine that is installed is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks._record import where
from benchmarks.models import llama

POINTS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="*", type=int, default=[16, 32, 80])
    parser.add_argument("--no-torch", action="store_true", help="leave torch's planner out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record: dict[str, Any] = {"where": where(), "rows": []}
    for layers in options.layers:
        row = measure(layers, with_torch=not options.no_torch)
        record["rows"].append(row)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        seconds = "  ".join(f"{k} {v:.1f} s" for k, v in row["seconds"].items())
        print(f"{layers} layers, {row['ops']} ops: {seconds}", flush=True)
    first, last = record["rows"][0], record["rows"][-1]
    if first is not last:
        print(f"planning grows as ops to the power {growth(first, last):.2f}")


def growth(small: dict[str, Any], large: dict[str, Any]) -> float:
    """The exponent between two sizes, of one plan with networkx."""
    seconds = [row["seconds"]["plan (networkx)"] for row in (small, large)]
    return math.log(seconds[1] / seconds[0]) / math.log(large["ops"] / small["ops"])


def measure(layers: int, *, with_torch: bool) -> dict[str, Any]:
    """Seconds of each kind of planning for one depth."""
    import gcpass
    from gcpass._evaluate import Evaluator
    from gcpass._solvers import _flow, find_solver, sweep
    from gcpass.fx._capture import capture
    from gcpass.fx._costs import Reference
    from gcpass.fx._graphs import copy_graph
    from gcpass.fx._partitioner import analyze_graph, stock

    with gcpass.fake_mode():
        fn, args = llama(layers)
    captured = capture(fn, args, None, "eager")
    count = captured.num_fwd_outputs
    seconds: dict[str, float] = {}
    if with_torch:
        joint = copy_graph(captured.joint)
        start = time.perf_counter()
        stock(joint, (), 0.5, num_fwd_outputs=count)
        seconds["torch"] = time.perf_counter() - start
    start = time.perf_counter()
    problem = analyze_graph(captured.joint, count, Reference(), "eager").problem
    seconds["analysis"] = time.perf_counter() - start
    solve = find_solver("auto")
    engines = {"networkx": False, **({"ortools": True} if _flow.has_ortools() else {})}
    for engine, fast in engines.items():
        with mock.patch.object(_flow, "has_ortools", return_value=fast):
            start = time.perf_counter()
            evaluator = Evaluator(problem)
            peak = solve(evaluator, None).evaluation.peak_nbytes
            solve(evaluator, peak // 2)
            seconds[f"plan ({engine})"] = time.perf_counter() - start
            start = time.perf_counter()
            points = sweep(Evaluator(problem), POINTS)
            seconds[f"frontier of {len(points)} ({engine})"] = time.perf_counter() - start
    return {"layers": layers, "ops": len(problem.ops), "seconds": seconds}


if __name__ == "__main__":
    main()

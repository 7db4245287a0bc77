"""The solver against an integer program, on the zoo at `tiny` size.

    python -m benchmarks.oracle --out benchmarks/results/oracle.json      (needs gcpass[ilp])

Both plan the same problem within the same budgets, and one evaluator judges both (reference costs,
op by op). HiGHS is given so many seconds; where it ends earlier, its plan is the best of its
program, which counts what is recomputed together as alive together (`gcpass/_solvers/_ilp.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks._record import where
from benchmarks.models import NAMES, build

FRACTIONS = (0.8, 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--fractions", nargs="*", type=float, default=list(FRACTIONS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each integer program")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record: dict[str, Any] = {"where": where(), "seconds": options.seconds, "rows": []}
    print("| model | budget | gcpass | integer program | lower bound | seconds |")
    print("|---|---|---|---|---|---|")
    for name in options.models:
        for row in compare(name, options.fractions, options.seconds):
            record["rows"].append(row)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(line(row), flush=True)
    gaps = [row["gcpass"] - row["ilp"] for row in record["rows"] if row["ilp"] is not None]
    if gaps:
        print(
            f"recomputes more than the integer program by {statistics.mean(gaps):.4f} of the "
            f"forward on average, {max(gaps):.4f} at most, {min(gaps):.4f} at least"
        )


def compare(name: str, fractions: list[float], seconds: float) -> list[dict[str, Any]]:
    """One model at budgets that are fractions of its unconstrained peak."""
    from gcpass._evaluate import Evaluator
    from gcpass._solvers import _ilp, find_solver
    from gcpass.fx._capture import capture
    from gcpass.fx._costs import Reference
    from gcpass.fx._partitioner import analyze_graph

    fn, args = build(name, "tiny")
    captured = capture(fn, args, None, "eager")
    problem = analyze_graph(captured.joint, captured.num_fwd_outputs, Reference(), "eager").problem
    evaluator, solve = Evaluator(problem), find_solver("segments")
    forward = problem.forward_picoseconds
    rows = []
    for fraction in fractions:
        budget = int(solve(evaluator, None).evaluation.peak_nbytes * fraction)
        mine = solve(evaluator, budget)
        start = time.perf_counter()
        kept = _ilp.Program(evaluator, budget).solve(seconds)
        took = time.perf_counter() - start
        theirs = None if kept is None else evaluator.evaluate(kept)
        if theirs is not None and theirs.peak_nbytes > budget:
            theirs = None
        rows.append(
            {
                "model": name,
                "ops": len(problem.ops),
                "fraction": fraction,
                "budget_bytes": budget,
                "feasible": mine.evaluation.peak_nbytes <= budget,
                "gcpass": mine.evaluation.recompute_picoseconds / forward,
                "ilp": theirs and theirs.recompute_picoseconds / forward,
                "bound": mine.bound_picoseconds / forward,
                "ilp_seconds": took,
            }
        )
    return rows


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    theirs = "none found" if row["ilp"] is None else f"{row['ilp']:.4f}"
    mine = f"{row['gcpass']:.4f}" if row["feasible"] else "none found"
    return (
        f"| {row['model']} ({row['ops']} ops) | {row['fraction']:g} | {mine} | {theirs} "
        f"| {row['bound']:.4f} | {row['ilp_seconds']:.0f} |"
    )


if __name__ == "__main__":
    main()

"""Plans of the zoo, torch's budgets beside gcpass's, in one evaluation.

    python -m benchmarks.paper --sweep --out benchmarks/results/paper.json
    python -m benchmarks.paper --gaps benchmarks/results/paper.json

Nothing is run: models of `paper` size are built under `gcpass.fake_mode`, and every plan, torch's
own included, is judged by the same evaluator under ``hardware="reference", codegen="eager"``. At
the peak of each of torch's plans the table gives what gcpass recomputes there, and the least that
any plan must (proven). The sweep looks at every 1% of the range between unconstrained and smallest;
the second command reads a record and prints how far its plans may be from the best ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks._record import where
from benchmarks.models import NAMES, build

TORCH_BUDGETS = (1.0, 0.99, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--size", default="paper")
    parser.add_argument("--sweep", action="store_true", help="plan at every 1%% of the range, too")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gaps", type=Path, metavar="RECORD", help="run nothing, print gaps")
    options = parser.parse_args()
    if options.gaps:
        print("\n".join(gaps(json.loads(options.gaps.read_text()))))
        return
    if not options.out:
        parser.error("--out FILE is needed")
    record: dict[str, Any] = {"where": where(), "models": {}}
    for name in options.models:
        record["models"][name] = compare(name, options.size, options.sweep)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print("\n".join(lines(name, record["models"][name])), flush=True)


def compare(name: str, size: str, sweep: bool) -> dict[str, Any]:
    """torch's 12 budgets, gcpass at the peak of each, and the two ends of its range."""
    import gcpass
    from gcpass._evaluate import Evaluator
    from gcpass._planning import make_plan
    from gcpass.fx._capture import capture
    from gcpass.fx._costs import Reference
    from gcpass.fx._graphs import copy_graph
    from gcpass.fx._options import make_request
    from gcpass.fx._partitioner import analyze_graph, run_stock

    with gcpass.fake_mode() if size == "paper" else contextlib.nullcontext():
        fn, args = build(name, size)
    captured = capture(fn, args, None, "eager")
    source = copy_graph(captured.joint)
    analysis = analyze_graph(captured.joint, captured.num_fwd_outputs, Reference(), "eager")
    evaluator = Evaluator(analysis.problem)

    def plan(
        budget: int | None, torch_budget: float | None = None, solver: str = "auto"
    ) -> dict[str, Any]:
        policy = None if torch_budget is None else f"torch:{torch_budget:g}"
        request = make_request(budget, policy, solver, "best")
        stock = None
        if torch_budget is not None:
            stock = run_stock(copy_graph(source), analysis, torch_budget)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # below the floor: the smallest peak is wanted
            made = make_plan(evaluator, request, stock=stock).plan
        return {
            "peak_bytes": made.predicted_peak_bytes,
            "recompute_ratio": made.recompute_ratio,
            "bound_ratio": made.lower_bound_ratio,
            "notes": made.notes,
        }

    torch_rows = {f"{b:g}": plan(None, b) for b in TORCH_BUDGETS}
    free, floor, repeating = plan(None), plan(1, solver="segments"), plan(1)
    result = {
        "ops": len(analysis.problem.ops),
        "torch": torch_rows,
        "gcpass": {
            "no budget": free,
            **{f"at torch {b}": plan(row["peak_bytes"]) for b, row in torch_rows.items()},
            "smallest peak": floor,
            "smallest peak, recomputing more than once": repeating,
        },
    }
    if sweep:
        high, low = free["peak_bytes"], floor["peak_bytes"]
        budgets = [high - (high - low) * i // 100 for i in range(101)]
        result["sweep"] = [{"budget_bytes": b, **plan(b)} for b in budgets]
    return result


def lines(name: str, result: dict[str, Any]) -> list[str]:
    """Markdown rows."""
    mine = result["gcpass"]
    rows = []
    for label in ("no budget", *(label for label in mine if "smallest" in label)):
        row = mine[label]
        rows.append(
            f"| {name} | gcpass {label} | {row['peak_bytes'] / MIB:.0f} | "
            f"{row['recompute_ratio']:.3f} | | |"
        )
    for budget, row in result["torch"].items():
        ours = mine[f"at torch {budget}"]
        rows.append(
            f"| {name} | torch {budget} | {row['peak_bytes'] / MIB:.0f} | "
            f"{row['recompute_ratio']:.3f} | {ours['recompute_ratio']:.3f} | "
            f"{ours['bound_ratio']:.3f} |"
        )
    if "sweep" in result:
        rows.append(f"| {name} | sweep: {describe(result['sweep'])} | | | | |")
    return rows


GAPS_AT = (80, 60, 40, 20, 0)  # % of the range from the smallest peak to the unconstrained one


def gaps(record: dict[str, Any]) -> list[str]:
    """Recomputation and lower bound at some peaks of every swept model, as Markdown rows."""
    head = " | ".join(f"{at}%" for at in GAPS_AT)
    rows = [f"| model | {head} | mean gap |", "|---" * (len(GAPS_AT) + 2) + "|"]
    for name, result in record["models"].items():
        sweep = result.get("sweep", [])
        if not sweep:
            continue
        cells = [
            f"{sweep[100 - at]['recompute_ratio']:.3f} / {sweep[100 - at]['bound_ratio']:.3f}"
            for at in GAPS_AT
        ]
        mean = statistics.mean(row["recompute_ratio"] - row["bound_ratio"] for row in sweep)
        rows.append(f"| `{name}` | {' | '.join(cells)} | {mean:.3f} |")
    return rows


def describe(sweep: list[dict[str, Any]]) -> str:
    """Whether the cost ever falls as the budget does, and the widest step of the peak."""
    costs = [row["recompute_ratio"] for row in sweep]
    falls = [a - b for a, b in pairwise(costs) if b < a]
    peaks = [row["peak_bytes"] for row in sweep]
    span = max(peaks[0] - peaks[-1], 1)
    widest = max(a - b for a, b in pairwise(sorted(set(peaks), reverse=True)))
    return (
        f"{len(falls)} of {len(sweep) - 1} steps cost less than the one before "
        f"(largest {max(falls, default=0.0):.4f}), widest dead zone {widest / span:.1%}"
    )


if __name__ == "__main__":
    main()

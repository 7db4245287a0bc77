"""Plans of the zoo at `paper` size, torch's budgets beside gcpass's, in one evaluation.

    python -m benchmarks.paper --out benchmarks/results/paper.json

Nothing is run: models are built under `gcpass.fake_mode`, and every plan, torch's own included, is
judged by the same evaluator under ``hardware="reference", codegen="eager"``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from benchmarks._record import where
from benchmarks.models import build

TORCH_BUDGETS = (1.0, 0.99, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.0)
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["mlp", "resnet", "llama", "narrow"])
    parser.add_argument("--size", default="paper")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    record: dict[str, Any] = {"where": where(), "models": {}}
    for name in options.models:
        record["models"][name] = compare(name, options.size)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print("\n".join(lines(name, record["models"][name])), flush=True)


def compare(name: str, size: str) -> dict[str, Any]:
    """torch's 12 budgets, and gcpass without a budget, at torch's best peak and at its floor."""
    import gcpass
    from gcpass.fx._capture import capture
    from gcpass.fx._graphs import copy_graph
    from gcpass.fx._options import make_request
    from gcpass.fx._partitioner import plan_graph

    with gcpass.fake_mode() if size == "paper" else contextlib.nullcontext():
        fn, args = build(name, size)
    captured = capture(fn, args, None, "eager")

    def plan(policy: str | None, budget: int | None) -> dict[str, Any]:
        request = make_request(budget, policy, "auto", "reference", "best")
        _, planned = plan_graph(
            copy_graph(captured.joint), captured.num_fwd_outputs, request, "eager"
        )
        made = planned.plan
        return {
            "peak_bytes": made.predicted_peak_bytes,
            "recompute_ratio": made.recompute_ratio,
            "in_backward_at": made.peak.op,
            "notes": made.notes,
        }

    torch_rows = {f"{b:g}": plan(f"torch:{b:g}", None) for b in TORCH_BUDGETS}
    best = min(row["peak_bytes"] for row in torch_rows.values())
    return {
        "torch": torch_rows,
        "gcpass": {
            "no budget": plan(None, None),
            "at torch's best peak": plan(None, best),
            "smallest peak": plan(None, 1),
        },
    }


def lines(name: str, result: dict[str, Any]) -> list[str]:
    """Markdown rows."""
    return [
        f"| {name} | {who} {label} | {row['peak_bytes'] / MIB:.0f} | {row['recompute_ratio']:.3f} |"
        for who in ("torch", "gcpass")
        for label, row in result[who].items()
    ]


if __name__ == "__main__":
    main()

"""The record of a `gcpass compare` as the page docs/compare.md.

gcpass compare zoo:mlp zoo:resnet ... --jsonl benchmarks/results/compare.jsonl
python -m benchmarks.compared benchmarks/results/compare.jsonl --out docs/compare.md
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from benchmarks._tables import rank_correlation
from gcpass._comparison import GCPASS, Comparison, ComparisonRow, match_of
from gcpass._report._comparison import draw_comparison

MIB = 2**20
TOLERANCE = 0.03  # of step time: two measurements of one plan differ by as much
TIE = 0.001  # of the forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    made = Comparison.from_jsonl(options.record.read_text())
    draw_comparison(made, options.out.with_suffix(".png"))
    options.out.write_text("\n".join(page(made)) + "\n")


def page(made: Comparison) -> list[str]:
    """The lines of the page."""
    run = made.run
    return [
        "# Manual policies and gcpass at their peaks",
        "",
        "```",
        str(run["command"]),
        "```",
        "",
        f"{run['date'][:10]}, commit {str(run['commit'])[:8]}, {run['device']}, {run['threads']} "
        f"threads, torch {run['torch']}, {run['codegen']} codegen, seed {run['seed']}. Peaks are "
        "measured, in MiB. Step times are against gcpass's without a budget: medians over "
        f"{run['steps']} rounds, in each of which every row ran a step. Gradient errors "
        "are relative, against eager's; with dropout, which eager draws otherwise, against those of "
        "gcpass without a budget. What each policy keeps is in "
        "[how-it-works.md](how-it-works.md#manual-policies).",
        "",
        *summary(made),
        predictions(made),
        "",
        "![peak against step time](compare.png)",
        "",
        *table(made),
    ]


def summary(made: Comparison) -> list[str]:
    """How gcpass stands against all policies."""
    pairs = made.pairs()
    lost = [
        f"`{row.model}` {row.label} ({row.error})"
        for row in made.rows
        if row.status != "ok" and row.error
    ]
    ratios = {(r.model, r.label): x for r, o in pairs if (x := o.times_longer(r)) is not None}
    slower = {k: ratio for k, ratio in ratios.items() if ratio > 1 + TOLERANCE}
    more = [
        f"`{r.model}` {r.label} ({o.recompute_ratio:.1%} against {r.recompute_ratio:.1%})"
        for r, o in pairs
        if (o.recompute_ratio or 0) > (r.recompute_ratio or 0) + TIE
    ]
    lines = [
        f"- {len(pairs)} pairs of a policy and gcpass at no more than its peak: gcpass's step time is "
        f"{statistics.geometric_mean(ratios.values()):.2f} of the policy's (geometric mean), "
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f}. It is more than "
        f"{TOLERANCE:.0%} above in {len(slower)}: "
        + (", ".join(f"`{m}` {label} ({x:.2f})" for (m, label), x in slower.items()) or "none")
        + ".",
        f"- It recomputes more than the policy in {len(more)}: "
        + (", ".join(more) or "none")
        + ". "
        "Keeping what fusion would give no buffer takes time too, so that the fastest plan recomputes a little (benchmarks/results/README.md says what prices a record was made with).",
    ]
    unplanned = [
        f"`{row.model}` {row.label}"
        for row in made.rows
        if row.status == "ok" and not row.is_planned
    ]
    if unplanned:
        lines.append(
            f"- Not planned, so that torch's own partition ran in their place, and not counted: "
            f"{', '.join(unplanned)}."
        )
    if lost:
        lines.append(f"- Without a result: {'; '.join(lost)}.")
    return lines


def predictions(made: Comparison) -> str:
    """How far predicted step times are from measured ones, and whether they rank plans alike."""
    errors, ranks = [], []
    for model, rows in made.models().items():
        base = next(row for row in rows if row.label == GCPASS)
        planned = [row for row in rows if row.status == "ok" and row.predicted_seconds]
        fastest = base.predicted_seconds or float("nan")
        predicted = [(row.predicted_seconds or 0) / fastest for row in planned]
        measured = [row.times_longer(base) or float("nan") for row in planned]
        errors += [
            abs(p / m - 1)
            for row, p, m in zip(planned, predicted, measured, strict=True)
            if row is not base
        ]
        correlation = rank_correlation(predicted, measured)
        ranks.append(f"{correlation:.2f} (`{model.removeprefix('zoo:')}`, {len(planned)})")
    return (
        f"- Step times against gcpass's without a budget were predicted {statistics.median(errors):.1%} "
        f"off (median of {len(errors)} plans; {max(errors):.1%} at most). Rank correlation of predicted "
        f"and measured times, by model and its plans: {', '.join(ranks)}."
    )


def table(made: Comparison) -> list[str]:
    lines = [
        "| model | policy | peak | recomputed | step time | gradient error | gcpass: peak "
        "| recomputed | step time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, rows in made.models().items():
        base = next(row for row in rows if row.label == GCPASS)
        for row in rows:
            if row.policy is None:
                continue
            other = match_of(row, rows)
            cells = [model.removeprefix("zoo:"), row.label, *_cells(row, base)]
            error = "" if row.gradient_error is None else f"{row.gradient_error:.0e}"
            cells += [error, *(_cells(other, base) if other else ["", "", ""])]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(row: ComparisonRow, base: ComparisonRow) -> list[str]:
    if row.status != "ok" or row.measured_peak_bytes is None:
        return [row.status, "", ""]
    again = "" if row.recompute_ratio is None else f"{row.recompute_ratio:.1%}"
    return [
        f"{row.measured_peak_bytes / MIB:.0f}",
        again,
        f"{row.times_longer(base) or float('nan'):.2f}",
    ]


if __name__ == "__main__":
    main()

"""Records of `benchmarks.measured` as tables, and the figures over all models."""

from __future__ import annotations

import statistics
from typing import Any

from gcpass._comparison import median_ratio

FRACTIONS = (0.8, 0.6, 0.45)
TORCH, AT_TORCH = "torch's best", "gcpass at torch's best"


def compact(models: dict[str, Any]) -> list[str]:
    """One line for each model: MiB, and step time against plain Inductor."""
    budgets = [f"gcpass {fraction:g}" for fraction in FRACTIONS]
    columns = ["plain inductor", "gcpass", *budgets, TORCH, AT_TORCH]
    lines = ["| model | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, result in models.items():
        rows = result["rows"]
        cells = [_cell(rows.get(c), rows.get("plain inductor")) for c in columns]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _cell(row: dict[str, Any] | None, plain: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if row.get("infeasible"):
        return "infeasible"
    measured = row["measured_bytes"] / 2**20
    budget = row.get("budget_bytes")
    asked = f" of {budget / 2**20:.0f}" if budget else ""
    if plain is None or row is plain:
        return f"{measured:.0f}{asked}"
    return f"{measured:.0f}{asked}, {_times(row, plain):.2f}"


def table(models: dict[str, Any]) -> list[str]:
    """The record as lines of a Markdown table; times are against gcpass without a budget."""
    lines = [
        "| model | configuration | budget MiB | predicted | measured | predicted / measured "
        "| recompute | step time, predicted | measured | measured / plain |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in models.items():
        rows = result["rows"]
        base, plain = rows["gcpass"], rows.get("plain inductor")
        for label, row in rows.items():
            if row.get("infeasible"):
                floor = row["floor_bytes"] / 2**20
                lines.append(f"| {name} | {label} | infeasible (floor {floor:.1f}) |||||||")
                continue
            mib = {k: row[k] / 2**20 for k in row if k.endswith("_bytes") and row[k] is not None}
            measured, predicted = mib["measured_bytes"], mib.get("predicted_bytes")
            lines.append(
                f"| {name} | {label} | {_number(mib.get('budget_bytes'))} | {_number(predicted)} "
                f"| {measured:.1f} | {_number(predicted and predicted / measured, 3)} "
                f"| {_number(row.get('recompute_ratio'), 3)} "
                f"| {_number(_ratio(row, base, 'predicted_seconds'), 2)} "
                f"| {_number(_times(row, base), 2)} "
                f"| {_number(plain and _times(row, plain), 2)} |"
            )
    return lines


def summary(models: dict[str, Any]) -> list[str]:
    """The figures over all models."""
    memory, unused, over, errors, ranks = [], [], 0, [], []
    plain, against_torch = [], []
    for result in models.values():
        rows = {k: r for k, r in result["rows"].items() if not r.get("infeasible")}
        planned = {k: r for k, r in rows.items() if k.startswith("gcpass")}
        for row in planned.values():
            memory.append(abs(row["predicted_bytes"] / row["measured_bytes"] - 1))
            if row["budget_bytes"]:
                over += row["measured_bytes"] > row["budget_bytes"]
                if row["recompute_ratio"]:
                    unused.append(1 - row["measured_bytes"] / row["budget_bytes"])
        plans = [row for row in rows.values() if "predicted_seconds" in row]
        predicted = [_ratio(row, rows["gcpass"], "predicted_seconds") for row in plans]
        measured = [_times(row, rows["gcpass"]) for row in plans]
        errors += [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True) if p != 1]
        ranks.append(rank_correlation(predicted, measured))
        if "plain inductor" in rows:
            plain.append(_times(rows["gcpass"], rows["plain inductor"]))
        if AT_TORCH in rows:
            against_torch.append(_times(rows[AT_TORCH], rows[TORCH]))
    lines = [
        f"peak: {len(memory)} plans, predicted off by {statistics.median(memory):.2%} (median), "
        f"{max(memory):.2%} (most); {over} over the budget",
    ]
    if unused:
        lines.append(
            f"budget unused where something is recomputed: {statistics.median(unused):.1%} "
            f"(median), {max(unused):.1%} (most)"
        )
    if errors:
        lines.append(
            f"step time against no budget: {len(errors)} plans, predicted off by "
            f"{statistics.median(errors):.1%} (median), {max(errors):.1%} (most); rank correlation "
            f"by model {', '.join(f'{r:.2f}' for r in ranks)}"
        )
    for values, what in (
        (plain, "no budget, against plain Inductor"),
        (against_torch, "at torch's best peak, against torch"),
    ):
        if values:
            mean = statistics.geometric_mean(values)
            lines.append(
                f"step time {what}: {mean:.3f} (geometric mean), {min(values):.2f} to "
                f"{max(values):.2f}"
            )
    return lines


def rank_correlation(left: list[float], right: list[float]) -> float:
    """Spearman's: the correlation of the ranks."""

    def ranks(values: list[float]) -> list[int]:
        return [sorted(values).index(value) for value in values]

    return statistics.correlation(ranks(left), ranks(right)) if len(left) > 1 else 1.0


def _times(row: dict[str, Any], base: dict[str, Any]) -> float:
    if "seconds" not in row or "seconds" not in base:
        return float("nan")
    return median_ratio(row["seconds"], base["seconds"])


def _ratio(row: dict[str, Any], base: dict[str, Any], key: str) -> float:
    return row[key] / base[key] if key in row and key in base else float("nan")


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"

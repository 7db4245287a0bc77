"""A comparison as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcpass._comparison import GCPASS, Comparison, ComparisonRow
from gcpass._report._draw import pyplot, save
from gcpass._units import format_bytes

MIB = 2**20


def comparison_table(comparison: Comparison) -> RenderableType:
    """A table for each model; times are against gcpass's without a budget."""
    ran = any(row.measured_peak_bytes is not None for row in comparison.rows)
    parts: list[RenderableType] = []
    for model, rows in comparison.models().items():
        table = Table(
            title=model, title_justify="left", box=SIMPLE, collapse_padding=True, pad_edge=False
        )
        table.add_column("", no_wrap=True)
        headers = ["budget", "predicted\npeak", "recom-\nputed"]
        headers += ["peak", "step\ntime", "grad.\nerror"] if ran else ["step\ntime"]
        for header in headers:
            table.add_column(header, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*_cells(row, rows[0], ran=ran))
        parts += [table, *(Text(f"{r.label}: {r.error}") for r in rows if r.error), Text()]
    return Group(*parts, *map(Text, _legend(comparison, ran=ran)))


def _cells(row: ComparisonRow, base: ComparisonRow, *, ran: bool) -> list[str]:
    cells = [row.label.replace(f"{GCPASS} at ", " at "), _bytes(row.budget_bytes)]
    if row.status != "ok":
        return [*cells, row.status]
    cells += [
        _bytes(row.predicted_peak_bytes),
        "-" if row.recompute_ratio is None else f"{row.recompute_ratio:.1%}",
    ]
    if not ran:
        return [*cells, _times(_predicted(row, base))]
    error = row.gradient_error
    return [
        *cells,
        _bytes(row.measured_peak_bytes),
        _times(row.times_longer(base)),
        "-" if error is None else f"{error:.0e}",
    ]


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)


def _predicted(row: ComparisonRow, base: ComparisonRow) -> float | None:
    mine, other = row.predicted_seconds, base.predicted_seconds
    return mine / other if mine and other else None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _legend(comparison: Comparison, *, ran: bool) -> list[str]:
    run = comparison.run
    lines = [
        f"{run['codegen']} codegen, {run['hardware']} cost model. at ...: gcpass, given that "
        "policy's peak. recomputed: of the forward's time. Times are against gcpass's without a "
        "budget" + ("." if ran else ", by the cost model."),
    ]
    if ran:
        against = sorted({r.gradient_reference for r in comparison.rows if r.gradient_reference})
        lines.append(
            f"step time: median of {run['steps']} rounds, in which each row ran a step, on "
            f"{run['device']}. "
            f"gradient error: relative, against {' or '.join(against)}'s."
        )
    return lines


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw each model's policies and plans, peak against time; the file's name says the format.

    Raises:
        OptionError: matplotlib is not installed, or the file cannot be written.
    """
    plt = pyplot("a comparison")
    models = comparison.models()
    across = min(len(models), 3)
    down = -(-len(models) // across)
    figure, grid = plt.subplots(
        down, across, figsize=(4.6 * across + 0.6, 3.5 * down), dpi=130, squeeze=False
    )
    for axes in grid.flat[len(models) :]:
        axes.set_visible(False)
    for axes, (model, rows) in zip(grid.flat, models.items(), strict=False):
        _draw_model(axes, model, rows)
    save(figure, path)


def _draw_model(axes: Any, model: str, rows: list[ComparisonRow]) -> None:
    """One model: gcpass's plans as a line, policies as points with their names."""
    ran = any(row.seconds for row in rows)

    def place(row: ComparisonRow) -> tuple[float, float] | None:
        cost = row.times_longer(rows[0]) if ran else row.recompute_ratio
        if row.peak_bytes is None or cost is None:
            return None
        return cost * (1 if ran else 100), row.peak_bytes / MIB

    mine = [p for r in rows if r.label.startswith(GCPASS) and (p := place(r))]
    mine.sort(key=lambda at: at[1])
    axes.plot(*zip(*mine, strict=True), "o-", color="tab:blue", ms=4, label="gcpass")
    manual = [(r.label, p) for r in rows if not r.label.startswith(GCPASS) and (p := place(r))]
    for _, at in manual:
        axes.plot(*at, "s", color="tab:orange", ms=4)
    axes.margins(x=0.18)
    axes.set_ylim(0, None)
    names: dict[tuple[float, float], list[str]] = {}  # points that lie together have one label
    for label, at in manual:
        near = next((other for other in names if _together(axes, at, other)), at)
        names.setdefault(near, []).append(label)
    for at, labels in names.items():
        text = "\n".join(labels)
        axes.annotate(text, at, (4, 3), textcoords="offset points", fontsize=6.5, va="center")
    axes.set_title(model, fontsize=9)
    what = "step time, of gcpass's without a budget" if ran else "recomputation, % of the forward"
    axes.set_xlabel(what, fontsize=8)
    axes.legend(frameon=False, fontsize=7, loc="lower left")
    axes.set_ylabel(f"{'measured' if ran else 'predicted'} peak, MiB", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _together(axes: Any, a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether the names of two points would be written over each other."""
    (left, low), (right, high) = axes.viewLim.get_points()
    return abs(a[0] - b[0]) < 0.25 * (right - left) and abs(a[1] - b[1]) < 0.05 * (high - low)


def verdict(comparison: Comparison) -> list[str]:
    """At each policy's peak: gcpass's step time and recomputation against the policy's."""
    lines = []
    for row, other in comparison.pairs():
        line = (
            f"{row.model}: at {row.label}'s peak of {_bytes(row.peak_bytes)}, gcpass recomputes "
            f"{other.recompute_ratio:.1%} of the forward against {row.recompute_ratio:.1%}"
        )
        if (times := other.times_longer(row)) is not None:
            line += f", and takes {times:.2f} of its time"
        lines.append(line)
    return lines

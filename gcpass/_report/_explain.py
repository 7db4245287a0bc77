"""A plan in the terminal: its peak, its decisions folded by layer, one decision in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from gcpass._explain import Row
from gcpass._plan import Plan
from gcpass._units import format_bytes, format_seconds

_WIDE = 120  # columns of a terminal in which every column of the decisions has room for words


def plan_tables(plan: Plan, rows: Sequence[Row]) -> Iterator[RenderableType]:
    """What the peak is made of, every folded decision, and the notes."""
    where = f"in the {'backward' if plan.peak.in_backward else 'forward'}, at {plan.peak.op}"
    yield Text(f"gcpass: {plan.headline()}", style="bold")
    yield Text(f"\nat the peak, {where}:")
    yield _peak_table(plan)
    yield Text("")
    yield _Decisions(rows) if rows else Text("The plan's file holds no decisions.")
    for note in plan.notes:
        yield Text(f"note: {note}", style="yellow")


def op_table(plan: Plan, row: Row) -> Iterator[RenderableType]:
    """All that is known of one decision."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    at_peak = format_bytes(row.peak_bytes) if row.peak_bytes else "nothing"
    if row.decision == "kept":
        again, peak = "recomputing would take", "at the peak"
        first = ""
        if row.recompute_seconds > row.seconds:
            first = ", with all that must be recomputed for it"
    else:
        again, peak, first = "recomputing takes", "saved at the peak", ""
    stops = dict(plan.stops)
    facts = [
        ("op", row.op),
        ("calls", row.target),
        ("module", row.module),
        ("source", row.source),
        ("decision", f"{row.decision}{', forced' if row.forced else ''}"),
        ("why", row.why),
        ("size", f"{format_bytes(row.nbytes)} ({row.nbytes} bytes)"),
        ("one run takes", format_seconds(row.seconds)),
        (again, "" if row.forced else format_seconds(row.recompute_seconds) + first),
        (peak, at_peak),
        ("let go before it", f"at depth {stops[row.op]}" if row.op in stops else ""),
        ("the peak", f"at {plan.peak.op}" + (", this op" if plan.peak.op == row.op else "")),
    ]
    for name, value in facts:
        if value:
            table.add_row(name, Text(value))
    yield table


def _peak_table(plan: Plan) -> Table:
    peak, total = plan.peak, plan.predicted_peak_bytes
    table = Table(box=None, pad_edge=False)
    table.add_column("held")
    table.add_column("bytes", justify="right")
    table.add_column("of the peak", justify="right")
    for words, nbytes in peak.parts.items():
        if nbytes:
            table.add_row(words, format_bytes(nbytes), f"{nbytes / max(total, 1):.1%}")
    counted = "Inductor's own count" if plan.counted else ""
    table.add_row("peak", format_bytes(total), counted, style="bold")
    return table


class _Decisions:
    """The folded decisions, largest first; on a narrow terminal op, module and why share a column.

    Args:
        rows: the decisions.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = sorted(rows, key=lambda row: -row.nbytes)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(narrow=options.max_width < _WIDE)

    def _table(self, *, narrow: bool) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("decision", no_wrap=True)
        words = ("op, module, why",) if narrow else ("op", "module or source")
        for name in words:
            table.add_column(name, overflow="fold")
        for name in ("values", "size", "at the peak", "to recompute"):
            table.add_column(name, justify="right", no_wrap=True)
        if not narrow:
            table.add_column("why", overflow="fold")
        for row in self._rows:
            said = [Text(row.target), Text(row.module or row.source or "-"), Text(row.why)]
            first = [Text("\n").join(said)] if narrow else said[:2]
            sign = "−" if row.decision == "recomputed" else ""
            table.add_row(
                row.decision,
                *first,
                f"{row.count:,}",
                format_bytes(row.nbytes),
                f"{sign}{format_bytes(row.peak_bytes)}" if row.peak_bytes else "-",
                format_seconds(row.recompute_seconds) if row.recompute_seconds else "-",
                *([] if narrow else said[2:]),
            )
        return table

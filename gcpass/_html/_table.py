"""The table of decisions: one row for each value, or for values alike in repeated layers."""

from __future__ import annotations

from collections.abc import Sequence

from gcpass._explain import Row
from gcpass._html._element import Markup, element
from gcpass._units import format_bytes, format_seconds

_COLUMNS = (
    ("decision", False),
    ("values", True),
    ("op", False),
    ("module, source", False),
    ("size", True),
    ("at the peak", True),
    ("to recompute", True),
    ("why", False),
)
_MOST = 1000


def decision_table(rows: Sequence[Row]) -> Markup:
    """The largest rows first; a column's button sorts by it where scripts run."""
    rows = sorted(rows, key=lambda row: -row.nbytes)
    head = [
        element(
            "th",
            element("button", name, type="button"),
            scope="col",
            class_="number" if is_number else None,
            aria_sort="descending" if name == "size" else None,
        )
        for name, is_number in _COLUMNS
    ]
    table = element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", [_row(row) for row in rows[:_MOST]]),
        class_="decisions",
    )
    return element(
        "div",
        table,
        _rest(rows[_MOST:]),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="Decisions",
    )


def _row(row: Row) -> Markup:
    at_peak = format_bytes(row.peak_bytes) if row.peak_bytes else ""
    if row.decision == "recomputed" and row.peak_bytes:
        at_peak = f"−{at_peak}"
    badge = element("span", row.decision, class_=f"badge {row.decision}")
    forced = element("span", "forced", class_="badge forced") if row.forced else ""
    return element(
        "tr",
        element("td", badge, " ", forced),
        _number(row.count, f"{row.count:,}"),
        element("td", element("code", row.target), title=row.op),
        element("td", element("code", row.module), " ", element("code", row.source)),
        _number(row.nbytes, format_bytes(row.nbytes)),
        _number(row.peak_bytes, at_peak),
        _number(row.recompute_seconds, _time(row.recompute_seconds)),
        element("td", row.why, class_="why"),
    )


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else ""


def _number(value: float, text: str) -> Markup:
    return element("td", text, class_="number", data_value=f"{value:.17g}")


def _rest(rows: Sequence[Row]) -> Markup:
    if not rows:
        return Markup("")
    count, nbytes = sum(row.count for row in rows), format_bytes(sum(row.nbytes for row in rows))
    return element("p", f"and {count:,} smaller values, {nbytes} together", class_="quiet")

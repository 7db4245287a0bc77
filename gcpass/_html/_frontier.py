"""Peak against recomputation: where plans of one step stand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcpass._html._chart import (
    SIDE,
    byte_ticks,
    dot,
    format_tick,
    frame,
    line_at,
    ticks,
    top_of,
)
from gcpass._html._element import Markup, element
from gcpass._units import format_bytes

_WIDE, _HIGH = 0.3, 0.12  # of the plot: nearer than that two names would run into each other


@dataclass(frozen=True)
class Place:
    """One plan in the picture.

    Attributes:
        label: what it is called; nothing for a plan without a name.
        kind: how it is marked: ``"other"``, ``"marked"`` or ``"free"``.
        peak_bytes: its peak.
        recompute_ratio: what it recomputes, as a fraction of the forward.
        at_least: the least that is proven to be needed at its peak, likewise; None: nothing is.
    """

    label: str
    peak_bytes: int
    recompute_ratio: float
    kind: str = "other"
    at_least: float | None = None


def frontier_chart(
    curve: Sequence[Place], marked: Sequence[Place], budget_bytes: int | None = None
) -> Markup:
    """A curve of plans, some marked by name, and the numbers as a table below.

    Args:
        curve: plans that are joined by a line.
        marked: plans that stand out, each with its name.
        budget_bytes: drawn as a line, or None.
    """
    places = [*curve, *marked]
    highest = max(place.peak_bytes for place in places)
    drawn = budget_bytes if budget_bytes and budget_bytes <= 1.6 * highest else None
    top = top_of(max(highest, drawn or 0))
    right = top_of(max(0.05, *(place.recompute_ratio for place in places)))

    def at(place: Place) -> tuple[float, float]:
        return place.recompute_ratio / right, place.peak_bytes / top

    along = sorted(curve, key=lambda place: place.recompute_ratio)
    points = " ".join(f"{SIDE * x:.1f},{SIDE * (1 - y):.1f}" for x, y in map(at, along))
    shapes = [element("polyline", points=points, class_="curve")]
    overlay: list[Markup] = []
    if drawn is not None:
        height = drawn / top
        hidden = any(x > 1 - _WIDE and abs(y - height) < _HIGH for x, y in map(at, marked))
        kind = "budget" if hidden else "budget right"
        line, label = line_at(height, kind, f"budget {format_bytes(drawn)}")
        shapes.append(line)
        overlay.append(label)
    for place in places:
        if place.at_least:
            x, y = place.at_least / right, place.peak_bytes / top
            text = f"proven: no plan with this peak recomputes less than {place.at_least:.1%}"
            shapes.append(dot(x, y, "proven", text))
    shapes += [dot(*at(place), place.kind, _said(place)) for place in places]
    named: list[tuple[float, float]] = []
    for place in marked:
        x, y = at(place)
        below = any(abs(x - u) < _WIDE and abs(y - v) < _HIGH for u, v in named)
        named.append((x, y))
        overlay.append(_name(place, x, y, below=below))
    marks = ticks(right)
    labels = [
        element("span", f"{100 * value:.3g}%", style=f"left:{100 * value / right:.2f}%")
        for value in marks
    ]
    columns = element("div", labels, class_="scale")
    axis = element("div", "recomputation, % of the forward", class_="axis")
    chart = frame(
        shapes=shapes,
        overlay=overlay,
        rows=[(value / top, format_tick(value)) for value in byte_ticks(top)],
        columns=Markup(columns + axis),
        title="Predicted peak against recomputation: " + "; ".join(map(_said, places)),
    )
    return element("figure", chart, _numbers(places), class_="frontier")


def _name(place: Place, x: float, y: float, *, below: bool) -> Markup:
    side = f"right:{100 * (1 - x):.2f}%" if x > 0.5 else f"left:{100 * x:.2f}%"
    kind = "name below" if below else "name"
    return element("span", place.label, class_=kind, style=f"bottom:{100 * y:.2f}%;{side}")


def _said(place: Place) -> str:
    label = f"{place.label}: " if place.label else ""
    return f"{label}peak {format_bytes(place.peak_bytes)}, recomputes {place.recompute_ratio:.1%}"


def _numbers(places: Sequence[Place]) -> Markup:
    names = ("plan", "peak", "recomputation", "at least")
    classes = (None, "number", "number", "number")
    head = [element("th", n, scope="col", class_=c) for n, c in zip(names, classes, strict=True)]
    rows = [
        element(
            "tr",
            element("th", place.label or "another plan", scope="row"),
            element("td", format_bytes(place.peak_bytes), class_="number"),
            element("td", f"{place.recompute_ratio:.1%}", class_="number"),
            element("td", f"{place.at_least:.1%}" if place.at_least else "", class_="number"),
        )
        for place in places
    ]
    table = element("table", element("thead", element("tr", head)), element("tbody", rows))
    return element(
        "details", element("summary", "The numbers"), element("div", table, class_="scroll")
    )

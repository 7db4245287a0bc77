"""Memory over the step: what is alive, op after op, stacked by what it is."""

from __future__ import annotations

from collections.abc import Sequence

from gcpass._html._chart import (
    SIDE,
    areas,
    byte_ticks,
    dot,
    format_tick,
    frame,
    line_at,
    top_of,
)
from gcpass._html._element import Markup, element, join
from gcpass._timeline import PARTS, Timeline
from gcpass._units import format_bytes

_KINDS = {words: name.removesuffix("_bytes") for name, words in PARTS}
_FAR = 1.6  # times everything else: a budget higher than that is told, not drawn

Curves = Sequence[tuple[str, Timeline]]


def memory_charts(curves: Curves, budget_bytes: int | None) -> Markup:
    """One chart for each plan, on one scale, with a legend; the op and its memory on hover.

    Args:
        curves: the plans' names and timelines.
        budget_bytes: drawn as a line, or None.
    """
    highest = max(max(curve.nbytes) for _, curve in curves)
    drawn = budget_bytes if budget_bytes and budget_bytes <= _FAR * highest else None
    top = top_of(max(highest, drawn or 0))
    shown = [w for w in _KINDS if any(any(curve.parts[w]) for _, curve in curves)]
    charts = [_chart(name, curve, shown, top, drawn) for name, curve in curves]
    aside = []
    if budget_bytes and drawn is None:
        text = f"The budget, {format_bytes(budget_bytes)}, is far above these charts."
        aside = [element("p", text, class_="quiet")]
    return join(_legend(shown), charts, aside)


def peak_table(curves: Curves) -> Markup:
    """What the fullest moment of each plan is made of."""
    shown = [w for w in _KINDS if any(curve.parts[w][curve.peak] for _, curve in curves)]
    head = element(
        "tr", element("th", "at the peak", scope="col"), [_number_head(n) for n, _ in curves]
    )
    body = [
        element(
            "tr",
            element("th", _swatch(words), words, scope="row"),
            [_share(curve.parts[words][curve.peak], max(curve.nbytes)) for _, curve in curves],
        )
        for words in shown
    ]
    total = element(
        "tr",
        element("th", "together", scope="row"),
        [element("td", format_bytes(max(c.nbytes)), class_="number") for _, c in curves],
        class_="total",
    )
    table = element("table", element("thead", head), element("tbody", body, total), class_="peak")
    return element("div", table, class_="scroll")


def _chart(
    name: str, curve: Timeline, shown: Sequence[str], top: float, budget: int | None
) -> Markup:
    edges = (*curve.starts, curve.count)
    layers = [[float(b) for b in curve.parts[words]] for words in shown]
    shapes = [
        element("path", d=d, class_=f"area {_KINDS[words]}")
        for words, d in zip(shown, areas(edges, layers, top), strict=True)
    ]
    turn = curve.starts[curve.backward] if curve.backward < len(curve.starts) else curve.count
    shapes.append(element("path", d=f"M{SIDE * turn / curve.count:.1f} 0V{SIDE}", class_="turn"))
    overlay = []
    if budget is not None:
        line, label = line_at(budget / top, "budget", f"budget {format_bytes(budget)}")
        shapes.append(line)
        overlay.append(label)
    peak = curve.peak
    middle = (curve.starts[peak] + curve.stops[peak]) / 2 / curve.count
    shapes.append(dot(middle, max(curve.nbytes) / top, "peak", "the peak"))
    shapes += [_hit(curve, point) for point in range(len(curve.starts))]
    said = f"peak {format_bytes(max(curve.nbytes))}, {_where(curve, peak)}"
    columns = join(
        element("span", "forward", style=f"flex-grow:{turn}"),
        element("span", "backward", style=f"flex-grow:{curve.count - turn}"),
    )
    chart = frame(
        shapes=shapes,
        overlay=overlay,
        rows=[(value / top, format_tick(value)) for value in byte_ticks(top)],
        columns=columns,
        title=f"Memory over the step, {name}: {said}. {_parts(curve, peak)}",
    )
    return element(
        "figure",
        element("figcaption", element("b", name), " ", element("span", said)),
        chart,
        element("output", _reading(curve, peak), class_="reading"),
        class_="memory",
        data_peak=peak,
    )


def _hit(curve: Timeline, point: int) -> Markup:
    """The stretch of the plot that a point answers for."""
    start, stop = curve.starts[point], curve.stops[point]
    left, right = SIDE * start / curve.count, SIDE * stop / curve.count
    return element(
        "rect",
        element("title", _reading(curve, point)),
        x=f"{left:.1f}",
        y=0,
        width=f"{right - left:.1f}",
        height=SIDE,
        class_="hit",
    )


def _reading(curve: Timeline, point: int) -> str:
    total = format_bytes(curve.nbytes[point])
    return f"{_where(curve, point)}: {total} alive. {_parts(curve, point)}"


def _where(curve: Timeline, point: int) -> str:
    return f"{'backward' if point >= curve.backward else 'forward'}, at {curve.ops[point]}"


def _parts(curve: Timeline, point: int) -> str:
    there = [(words, column[point]) for words, column in curve.parts.items() if column[point]]
    return "; ".join(f"{words} {format_bytes(nbytes)}" for words, nbytes in there)


def _legend(shown: Sequence[str]) -> Markup:
    return element("ul", [element("li", _swatch(w), w) for w in shown], class_="legend")


def _swatch(words: str) -> Markup:
    return element("i", class_=f"swatch {_KINDS[words]}", aria_hidden="true")


def _share(nbytes: int, total: int) -> Markup:
    part = nbytes / max(total, 1)
    share = element("span", f"{part:.0%}" if part >= 0.005 else "", class_="quiet share")
    return element("td", format_bytes(nbytes), " ", share, class_="number")


def _number_head(text: str) -> Markup:
    return element("th", text, scope="col", class_="number")

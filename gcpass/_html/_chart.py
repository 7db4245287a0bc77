"""The frame of a chart: axes and labels as text that keeps its size, shapes that stretch.

The plot is an SVG of 1000 x 1000 units that fills whatever room there is; every label is HTML
beside it, at a fraction of its width or height. So a chart is legible at any width, without a
script.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gcpass._html._element import Markup, element
from gcpass._units import format_bytes

SIDE = 1000  # units of a plot
_HEADROOM = 1.08  # above the highest thing shown
_NICE = (1, 2, 5, 10)


def top_of(highest: float) -> float:
    """The value at the upper edge of an axis that starts at 0."""
    return max(highest, 1e-12) * _HEADROOM


def ticks(top: float, unit: float = 1.0, count: int = 4) -> list[float]:
    """Round values from 0 to ``top``, in about ``count`` steps of 1, 2 or 5 of some unit."""
    scale = 10.0 ** math.floor(math.log10(top / unit / count))
    step = min((n * scale * unit for n in _NICE), key=lambda s: abs(math.log(top / s / count)))
    return [step * i for i in range(int(top / step) + 1)]


def byte_ticks(top: float) -> list[float]:
    """Round sizes from 0 to ``top``."""
    unit = next((u for u in (2**30, 2**20, 2**10) if top >= 2 * u), 1)
    return ticks(top, unit)


def format_tick(nbytes: float) -> str:
    """A size on an axis: ``"1.5 GiB"``, ``"300 MiB"``."""
    number, unit = format_bytes(nbytes).split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def frame(
    *,
    shapes: Iterable[Markup],
    overlay: Iterable[Markup] = (),
    rows: Sequence[tuple[float, str]],
    columns: Markup,
    title: str,
) -> Markup:
    """A plot between its axes.

    Args:
        shapes: SVG, in units of the plot, y downwards.
        overlay: labels over the plot, placed by `at`.
        rows: where the horizontal axis' parallels are, as fractions of the height from below, and
            what they say.
        columns: what stands below the plot.
        title: what the chart shows, for those who do not see it.
    """
    grid = [
        element("path", d=f"M0 {_number(SIDE * (1 - y))}H{SIDE}", class_="grid") for y, _ in rows
    ]
    svg = element(
        "svg",
        element("title", title),
        grid,
        shapes,
        viewBox=f"0 0 {SIDE} {SIDE}",
        preserveAspectRatio="none",
        role="img",
        aria_label=title,
    )
    labels = [element("span", text, style=f"bottom:{100 * y:.2f}%") for y, text in rows]
    return element(
        "div",
        element("div", labels, class_="rows", aria_hidden="true"),
        element("div", svg, overlay, class_="plot", tabindex="0"),
        element("div", columns, class_="columns", aria_hidden="true"),
        class_="chart",
    )


def line_at(y: float, kind: str, text: str) -> tuple[Markup, Markup]:
    """A line across the plot at a fraction of its height, and its label."""
    shape = element("path", d=f"M0 {_number(SIDE * (1 - y))}H{SIDE}", class_=f"line {kind}")
    return shape, element("span", text, class_=f"on {kind}", style=f"bottom:{100 * y:.2f}%")


def dot(x: float, y: float, kind: str, text: str) -> Markup:
    """A round mark at a place of the plot; a line of no length keeps its shape when stretched."""
    d = f"M{_number(SIDE * x)} {_number(SIDE * (1 - y))}h0"
    return element("path", element("title", text), d=d, class_=f"dot {kind}")


def areas(edges: Sequence[int], layers: Sequence[Sequence[float]], top: float) -> list[str]:
    """Paths of layers that lie on each other, each level between two edges.

    Args:
        edges: of the levels, one more than a layer has values; they fill the width.
        layers: from the lowest on, of values in the units of ``top``.
        top: the value at the upper edge of the plot.
    """
    xs = [_number(SIDE * edge / edges[-1]) for edge in edges]
    below = [0.0] * (len(edges) - 1)
    paths = []
    for layer in layers:
        above = [b + value for b, value in zip(below, layer, strict=True)]
        ys = [_number(SIDE * (1 - value / top)) for value in above]
        floors = [_number(SIDE * (1 - value / top)) for value in below]
        there = "".join(f"V{y}H{x}" for y, x in zip(ys, xs[1:], strict=True))
        back = "".join(f"V{y}H{x}" for y, x in zip(floors[::-1], xs[-2::-1], strict=True))
        paths.append(f"M{xs[0]} {floors[0]}{there}{back}Z")
        below = above
    return paths


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

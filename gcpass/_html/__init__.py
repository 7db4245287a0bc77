"""Parts of a page that show plans: plain data in, markup out; no network, no library."""

from gcpass._html._element import Markup, element, join
from gcpass._html._frontier import Place, frontier_chart
from gcpass._html._memory import memory_charts, peak_table
from gcpass._html._page import fragment, page, tiles
from gcpass._html._table import decision_table

__all__ = [
    "Markup",
    "Place",
    "decision_table",
    "element",
    "fragment",
    "frontier_chart",
    "join",
    "memory_charts",
    "page",
    "peak_table",
    "tiles",
]

"""Minimum cut of a small network with whole-number capacities: the one door to flow libraries.

networkx is always there. OR-tools (``pip install 'gcpass[fast]'``) does the same in C++, and is
used where it is installed and the capacities fit into its 64 bits. Both give the same cut: of all
minimum cuts, the one with the fewest vertices on the sink's side.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from functools import cache

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from gcpass._errors import UnsupportedGraph

SOURCE, SINK = "source", "sink"

_LARGEST = 2**62  # the most that OR-tools' flow may add up to

Edge = tuple[object, object]


def sink_side(capacities: Mapping[Edge, int], unbounded: Iterable[Edge]) -> set[object]:
    """The vertices on the sink's side of a minimum cut.

    Args:
        capacities: whole-number capacity of each edge; `SOURCE` and `SINK` are the terminals.
            Whole numbers, for rounding can break a cut (networkx's own warning).
        unbounded: edges that may not be cut.

    Returns:
        The sink's side with the fewest vertices: exactly what can still reach the sink once the
        flow is maximal.

    Raises:
        UnsupportedGraph: an unbounded path joins the terminals.
    """
    unbounded = list(unbounded)
    if has_ortools() and 2 * sum(capacities.values()) < _LARGEST:
        return by_ortools(capacities, unbounded)
    return by_networkx(capacities, unbounded)


@cache
def has_ortools() -> bool:
    return importlib.util.find_spec("ortools") is not None


def by_networkx(capacities: Mapping[Edge, int], unbounded: Collection[Edge]) -> set[object]:
    """`sink_side`, by networkx."""
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    graph.add_edges_from((u, v, {"capacity": c}) for (u, v), c in capacities.items())
    graph.add_edges_from(unbounded)  # no capacity: infinite
    try:
        residual = boykov_kolmogorov(graph, SOURCE, SINK)
    except nx.NetworkXUnbounded as error:
        raise _no_plan() from error
    # Walk back from the sink over edges with capacity left.
    reached: set[object] = {SINK}
    stack: list[object] = [SINK]
    while stack:
        vertex = stack.pop()
        for before, edge in residual.pred[vertex].items():
            if before not in reached and edge["capacity"] > edge["flow"]:
                reached.add(before)
                stack.append(before)
    return reached


def by_ortools(capacities: Mapping[Edge, int], unbounded: Collection[Edge]) -> set[object]:
    """`sink_side`, by OR-tools; capacities add up to less than 2^61."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    endless = sum(capacities.values()) + 1  # more than any cut through bounded edges
    number: dict[object, int] = {SOURCE: 0, SINK: 1}
    for edge in (*capacities, *unbounded):
        for vertex in edge:
            number.setdefault(vertex, len(number))
    flow = SimpleMaxFlow()
    for (u, v), capacity in capacities.items():
        flow.add_arc_with_capacity(number[u], number[v], capacity)
    for u, v in unbounded:
        flow.add_arc_with_capacity(number[u], number[v], endless)
    flow.solve(0, 1)
    if flow.optimal_flow() >= endless:
        raise _no_plan()
    there = set(flow.get_sink_side_min_cut()) | {1}
    return {vertex for vertex, index in number.items() if index in there}


def _no_plan() -> UnsupportedGraph:
    return UnsupportedGraph(
        "the constraints leave no plan: a value that may not be recomputed cannot be kept"
    )

"""Minimum cut of a small network with whole-number capacities: the one door to a flow library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from gcpass._errors import UnsupportedGraph

SOURCE, SINK = "source", "sink"


def sink_side(
    capacities: Mapping[tuple[object, object], int], unbounded: Iterable[tuple[object, object]]
) -> set[object]:
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
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    graph.add_edges_from((u, v, {"capacity": c}) for (u, v), c in capacities.items())
    graph.add_edges_from((u, v) for u, v in unbounded)  # no capacity: infinite
    try:
        residual = boykov_kolmogorov(graph, SOURCE, SINK)
    except nx.NetworkXUnbounded as error:
        raise UnsupportedGraph(
            "the constraints leave no plan: a value that may not be recomputed cannot be kept"
        ) from error
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

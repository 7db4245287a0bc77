"""Small operations on FX graphs."""

from __future__ import annotations

from torch import fx

from gcpass.fx import _meta


def copy_graph(joint: fx.GraphModule) -> fx.GraphModule:
    """The same graph, nodes and their metadata copied one level deep."""
    graph = fx.Graph()
    result = graph.graph_copy(joint.graph, {}, return_output_node=True)
    assert isinstance(result, tuple)  # (what is returned, the output node)
    value, output = result
    assert isinstance(output, fx.Node)
    _meta.share(output, graph.output(value))
    return fx.GraphModule(joint, graph)

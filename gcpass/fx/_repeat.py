"""The joint graph of a plan that recomputes values more than once: further runs as nodes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from gcpass._repeat import Repeated
from gcpass.fx._analyze import Analysis
from gcpass.fx._graphs import copy_graph


def repeat_graph(analysis: Analysis, repeated: Repeated) -> Analysis:
    """A copy of the joint graph with a node for every op of the repeated problem.

    Args:
        analysis: the graph in which every op runs once.
        repeated: its problem, with further runs of some ops.

    Returns:
        The graph and the repeated problem.
    """
    joint = copy_graph(analysis.joint)
    named = {node.name: node for node in joint.graph.nodes}
    first = [named[node.name] for node in analysis.nodes]
    original = {here: index for index, here in enumerate(repeated.place)} | dict(repeated.copies)
    nodes: list[fx.Node] = []
    for here, op in enumerate(repeated.problem.ops):
        index = original[here]
        node = first[index]
        reads = zip(analysis.problem.ops[index].inputs, op.inputs, strict=True)
        now = {first[was]: nodes[read] for was, read in reads}
        if here in repeated.copies:
            node = _run_again(joint.graph, node, op.name, now)
        else:
            for was, read in now.items():
                if was is not read:
                    node.replace_input_with(was, read)
        nodes.append(node)
    gradients = zip(analysis.problem.gradients, repeated.problem.gradients, strict=True)
    _return_late(joint, analysis.num_fwd_outputs, {first[w]: nodes[n] for w, n in gradients})
    joint.recompile()
    return Analysis(joint, repeated.problem, tuple(nodes), analysis.num_fwd_outputs)


def _return_late(joint: fx.GraphModule, count: int, late: Mapping[fx.Node, fx.Node]) -> None:
    """Let the backward return the run of a value that it has; the first ``count`` stay."""
    (output,) = joint.graph.find_nodes(op="output")
    leaves = list(output.args[0])
    output.args = ((*leaves[:count], *(late.get(leaf, leaf) for leaf in leaves[count:])),)


def _run_again(
    graph: fx.Graph, node: fx.Node, name: str, reads: Mapping[fx.Node, fx.Node]
) -> fx.Node:
    """A further run of ``node``, right after it."""
    with graph.inserting_after(node):
        again = graph.node_copy(node, lambda n: reads.get(n, n))
    again.name = name
    return again

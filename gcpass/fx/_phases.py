"""When each node of a joint graph runs, and in which order."""

from __future__ import annotations

from torch import fx

from gcpass._problem import Phase
from gcpass.fx import _compat, _meta
from gcpass.fx._random import is_random


def output_nodes(
    joint: fx.GraphModule, num_fwd_outputs: int
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's outputs: the forward's and the backward's."""
    (output,) = joint.graph.find_nodes(op="output")
    leaves = list(output.args[0])
    forward = [n for n in leaves[:num_fwd_outputs] if isinstance(n, fx.Node)]
    backward = [n for n in leaves[num_fwd_outputs:] if isinstance(n, fx.Node)]
    return forward, backward


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _is_backward_only_input(node: fx.Node) -> bool:
    return node.op == "placeholder" and (
        "bwd_seed_offset" in str(node.target) or "bwd_base_offset" in str(node.target)
    )


def classify(joint: fx.GraphModule, num_fwd_outputs: int) -> dict[fx.Node, Phase]:
    """The phase of every node but the output."""
    forward_outputs, _ = output_nodes(joint, num_fwd_outputs)
    phases: dict[fx.Node, Phase] = {}
    for node in joint.graph.nodes:
        if node.op == "output":
            continue
        if is_tangent(node) or _is_backward_only_input(node):
            phases[node] = Phase.BACKWARD
        elif node.op in ("placeholder", "get_attr"):
            phases[node] = Phase.INPUT
        elif _must_be_in_backward(node) or any(
            phases[read] is Phase.BACKWARD for read in node.all_input_nodes
        ):
            phases[node] = Phase.BACKWARD
        else:
            phases[node] = Phase.EITHER
    required = [n for n in forward_outputs if phases[n] is Phase.EITHER]
    required += [n for n, p in phases.items() if p is Phase.EITHER and _runs_for_its_effect(n)]
    while required:
        node = required.pop()
        if phases[node] is Phase.EITHER:
            phases[node] = Phase.FORWARD
            required.extend(node.all_input_nodes)
    return phases


def _must_be_in_backward(node: fx.Node) -> bool:
    """An effect of the backward's; to draw is one: earlier, the forward's draws would be others."""
    return _compat.must_be_in_backward(node) or (is_random(node) and _meta.is_of_backward(node))


def _runs_for_its_effect(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        _compat.must_be_in_forward(node)
        or (not node.users and node.is_impure(impure_random=False))
        or node.target is _compat.with_effects
    )


def running_order(joint: fx.GraphModule, phases: dict[fx.Node, Phase]) -> list[fx.Node]:
    """Inputs, the forward range, the backward.

    AOTAutograd traces what only the backward wants late; here such a node stands right after the
    last of its inputs, where the forward would compute it. One that reads inputs only stands before
    its first reader, or, if only the backward reads it, by the latest of what the backward still
    wants then: so a stretch of the forward belongs to a stretch of the backward. Random ops draw
    from one stream: they stand as they were traced, so that each draws what eager would.
    """
    nodes = [n for n in joint.graph.nodes if n.op != "output"]
    inputs = [n for n in nodes if phases[n] is Phase.INPUT]
    backward = [n for n in nodes if phases[n] is Phase.BACKWARD]
    place: dict[fx.Node, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        if phases[node] is Phase.FORWARD or (phases[node] is Phase.EITHER and is_random(node)):
            place[node] = (position, position)
    end = len(nodes)
    for position, node in enumerate(nodes):
        if phases[node] is Phase.EITHER and node not in place:
            reads = [place[r][0] for r in node.all_input_nodes if r in place]
            place[node] = (max(reads), position) if reads else (end, position)
    still_wanted = _still_wanted(backward, place, end)
    for position in range(end - 1, -1, -1):  # nodes that read inputs only
        node = nodes[position]
        if phases[node] is Phase.EITHER and place[node][0] == end:
            uses = [place[u][0] - 1 for u in node.users if u in place and place[u][0] < end]
            if not uses:
                uses = [still_wanted[u] for u in node.users if u in still_wanted]
            if uses:
                place[node] = (min(uses), position)
    forward = sorted(place, key=lambda n: place[n])
    return inputs + topological(forward) + backward


def _still_wanted(
    backward: list[fx.Node], place: dict[fx.Node, tuple[int, int]], end: int
) -> dict[fx.Node, int]:
    """For each node of the backward, the latest place of what it or a later one reads."""
    wanted: dict[fx.Node, int] = {}
    latest = min((p for p, _ in place.values()), default=end)  # where nothing more is wanted
    for node in reversed(backward):
        reads = [place[r][0] for r in node.all_input_nodes if r in place and place[r][0] < end]
        latest = wanted[node] = max([*reads, latest])
    return wanted


def topological(nodes: list[fx.Node]) -> list[fx.Node]:
    """``nodes`` with every node after its inputs, otherwise as they stand."""
    pending = set(nodes)
    ordered: list[fx.Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if node not in pending:
                stack.pop()
                continue
            missing = [r for r in node.all_input_nodes if r in pending]
            if missing:
                stack.extend(missing)
            else:
                pending.discard(node)
                ordered.append(node)
                stack.pop()
    return ordered

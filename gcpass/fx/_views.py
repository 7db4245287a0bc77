"""Which nodes share the memory of others, and which overwrite it."""

from __future__ import annotations

import operator

import torch
from torch import fx

from gcpass.fx import _compat, _meta

aten = torch.ops.aten

_CLONE_SUFFIX = "_before_mutation"


def base_of(node: fx.Node) -> fx.Node | None:
    """The node whose memory ``node`` shares, if it allocates none of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return source if isinstance(source, fx.Node) and base_of(source) is not None else None
    if node.target in (aten._unsafe_view.default, aten.lift_fresh.default):
        return _first_node(node)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    if schema.name == "_c10d_functional::wait_tensor":
        return _first_node(node)
    if not schema.returns or schema.is_mutable:
        return _first_node(node) if node.target is aten.copy_.default else None
    if any(r.alias_info is None for r in schema.returns):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and position < len(node.args):
            base = node.args[position]
            return base if isinstance(base, fx.Node) else None
    return None


def _first_node(node: fx.Node) -> fx.Node | None:
    return next((a for a in node.args if isinstance(a, fx.Node)), None)


def mutated_inputs(joint: fx.GraphModule) -> set[fx.Node]:
    """Inputs whose memory the forward overwrites, in the graph or right after it."""
    mutated = _meta.inputs_mutated_after_the_graph(joint)
    for node in joint.graph.nodes:
        if node.op != "call_function" or _compat.must_be_in_backward(node):
            continue
        for argument in mutated_arguments(node):
            root = view_root(argument)
            if root.op in ("placeholder", "get_attr"):
                mutated.add(root)
    return mutated


def mutated_arguments(node: fx.Node) -> list[fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found: list[fx.Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            )
            values = value if isinstance(value, (list, tuple)) else [value]
            found.extend(v for v in values if isinstance(v, fx.Node))
    return found


def view_root(node: fx.Node) -> fx.Node:
    while (base := base_of(node)) is not None:
        node = base
    return node


def clone_mutated_inputs(joint: fx.GraphModule, *, kept: bool = False) -> None:
    """Let everything that reads an input before its mutation read a copy of it.

    torch's partitioner re-reads such an input in the backward, after the mutation, and returns
    wrong gradients (pytorch#197039). The copy can be kept; where a plan does not keep it,
    `drop_unkept_clones` takes it out of the forward again.

    Args:
        joint: the graph.
        kept: tell torch's own partitioner to keep the copies.
    """
    order = {node: position for position, node in enumerate(joint.graph.nodes)}
    for node in sorted(mutated_inputs(joint), key=order.__getitem__):
        readers = [u for u in node.users if u.op != "output" and node not in mutated_arguments(u)]
        if not readers or not isinstance(_meta.value(node), torch.Tensor):
            continue
        with joint.graph.inserting_before(min(readers, key=lambda reader: order[reader])):
            copy = joint.graph.call_function(aten.clone.default, (node,))
        copy.name = f"{node.name}{_CLONE_SUFFIX}"
        _meta.describe_copy(copy, aten.clone.default(_meta.value(node)), kept=kept)
        for user in readers:
            user.replace_input_with(node, copy)
    joint.recompile()


def drop_unkept_clones(forward: fx.GraphModule) -> None:
    """Let the forward read the input itself where the copy of it is not handed on."""
    for node in list(forward.graph.nodes):
        if node.name.endswith(_CLONE_SUFFIX) and not any(u.op == "output" for u in node.users):
            (source,) = node.all_input_nodes
            node.replace_all_uses_with(source)
            forward.graph.erase_node(node)
    forward.recompile()

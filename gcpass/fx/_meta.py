"""What tracing wrote on the nodes of a graph. The only module that touches ``node.meta``."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from gcpass.fx import _compat


def value(node: fx.Node) -> Any:
    """The node's fake value: a tensor, a number, a tuple of them, or None."""
    return node.meta.get("val")


def describe_copy(node: fx.Node, fake: Any, *, kept: bool) -> None:
    """Mark a node that gcpass added as part of the forward, with its fake value."""
    node.meta = {"val": fake, "partitioner_tag": "is_forward"}
    if kept:
        node.meta["recompute"] = _compat.CheckpointPolicy.MUST_SAVE


def is_of_backward(node: fx.Node) -> bool:
    """Whether the node was traced in the backward, whatever it reads."""
    return node.meta.get("partitioner_tag") == "is_backward"


def share(source: fx.Node, target: fx.Node) -> None:
    """Give a node's copy the same metadata."""
    target.meta = dict(source.meta)


def show_outputs(output: fx.Node, count: int) -> None:
    """Tell Inductor how many of a graph's outputs the user sees."""
    output.meta["user_visible_output_idxs"] = list(range(count))


def inputs_mutated_after_the_graph(joint: fx.GraphModule) -> set[fx.Node]:
    """Inputs that AOTAutograd overwrites with an output of the forward once it has run."""
    (output,) = joint.graph.find_nodes(op="output")
    described = output.meta.get("desc") or ()
    targets = {d.mutated_input for d in described if hasattr(d, "mutated_input")}
    return {
        node
        for node in joint.graph.find_nodes(op="placeholder")
        if targets and node.meta.get("desc") in targets
    }


def checkpoint_policy(node: fx.Node) -> _compat.CheckpointPolicy | None:
    """What the user's checkpointing says of the node's value; None if it says nothing."""
    policy = node.meta.get("recompute")
    return policy if isinstance(policy, _compat.CheckpointPolicy) else None


def annotation(node: fx.Node, key: str) -> Any:
    """What `torch.fx.traceback.annotate` put on the node under ``key``; None if nothing."""
    custom = node.meta.get("custom")
    return custom.get(key) if isinstance(custom, dict) else None


def forget_annotation(node: fx.Node, key: str) -> None:
    """Take what `annotation` finds off the node."""
    if annotation(node, key) is not None:
        node.meta["custom"] = {k: v for k, v in node.meta["custom"].items() if k != key}


def has_backward_hook(node: fx.Node) -> bool:
    """Whether a hook of the backward wants the node's value as the forward left it."""
    return bool(node.meta.get("has_backward_hook", False))


def origin(node: fx.Node) -> tuple[str, str]:
    """The module path and the source line of the user's code that ``node`` came from."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()] if isinstance(stack, dict) else []
    module = _tidy_path(paths[-1]) if paths else ""
    lines = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File ")
    ]
    if not lines:
        return module, ""
    parts = lines[-1].split(",")
    file = parts[0].removeprefix("File ").strip('" ').rpartition("/")[2]
    return module, f"{file}:{parts[1].strip().removeprefix('line ')}" if len(parts) > 1 else file


def _tidy_path(path: str) -> str:
    """``L['self'].layers[3]._modules['mlp']`` as ``layers.3.mlp``."""
    path = re.sub(r"\[['\"]?|\._modules|__getattr__\(['\"]", ".", path)
    path = re.sub(r"['\"]?\]|['\"]\)", "", path)
    path = re.sub(r"__closure__\.+\d+\.+cell_contents", "", path)
    parts = [p for p in path.split(".") if p]
    while parts and parts[0] in ("L", "G", "self", "fn"):
        parts = parts[1:]
    return ".".join(parts)

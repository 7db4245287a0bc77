"""One call in a joint graph, with the fake values that go in and come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from gcpass.fx import _compat, _meta

# Namespaces of operators that torch itself defines.
TORCHS_OWN = ("aten", "prims", "prim", "_c10d_functional", "quantized")


@dataclass(frozen=True, eq=False)
class Call:
    """A node that calls an operator.

    Attributes:
        node: the node.
        arguments: its arguments, nodes replaced by their fake values.
        keywords: its keyword arguments, likewise.
        value: its own fake value.
    """

    node: fx.Node
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    value: Any

    @property
    def packet(self) -> str:
        """The operator without its overload, such as ``"aten.mm"``."""
        return packet_name(self.node)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its positional arguments."""
        return [a for a in self.arguments if isinstance(a, torch.Tensor)]


def call_of(node: fx.Node) -> Call:
    arguments, keywords = map_arg(node.args, _meta.value), map_arg(node.kwargs, _meta.value)
    return Call(node, arguments, keywords, _meta.value(node))


def packet_name(node: fx.Node) -> str:
    """The operator a node calls without its overload; the name of any other callable."""
    packet = getattr(node.target, "_overloadpacket", None)
    return str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))


def shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sizes, symbolic ones replaced by what they stood for while tracing."""
    return tuple(_compat.hint(size) for size in tensor.shape)


def block_nbytes(value: object) -> int:
    """Bytes of the block that a (fake) tensor of these sizes and strides needs."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    sizes = shape(value)
    if 0 in sizes:
        return 0
    strides = [_compat.hint(s) for s in value.stride()]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return extent * value.dtype.itemsize


def items_of(value: object) -> list[object] | None:
    """What a value consists of, in order; None if it is a single one."""
    if isinstance(value, dict):  # of a user's Triton kernel: what it writes, by name
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else None


def elements(value: object) -> int:
    """How many elements the tensors of a value have."""
    items = items_of(value)
    if items is not None:
        return sum(map(elements, items))
    if not isinstance(value, torch.Tensor):
        return 0
    count = 1
    for size in shape(value):
        count *= size
    return count


def elements_nbytes(value: object) -> int:
    """Bytes of the elements of a value's tensors, however they are laid out."""
    items = items_of(value)
    if items is not None:
        return sum(map(elements_nbytes, items))
    return elements(value) * value.dtype.itemsize if isinstance(value, torch.Tensor) else 0

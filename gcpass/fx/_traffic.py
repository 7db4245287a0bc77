"""Bytes that a pointwise op or a reduction adds to the kernel that a fusing compiler puts it in.

The model: the loops between two ops that cannot fuse (`Kernel.EXTERN`) are one kernel. Inside it
values stay in registers, so an op adds

    the bytes of each input that comes from outside the kernel, if no op before it read it there
    the bytes of its own value, if something outside the kernel reads it or the graph returns it
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from gcpass._problem import Kernel
from gcpass.fx import _meta
from gcpass.fx._call import block_nbytes, elements_nbytes, items_of, packet_name
from gcpass.fx._kernels import kernel
from gcpass.fx._phases import is_tangent
from gcpass.fx._views import base_of, view_root

_PICKS = {"embedding", "index", "gather", "index_select", "slice", "_unsafe_index"}


def loop_traffic(order: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Bytes that each loop of ``order`` adds to its kernel; ops that cannot fuse are left out."""
    kernels = _kernels(order)
    traffic: dict[fx.Node, int] = {}
    read: set[tuple[fx.Node, int]] = set()
    for node, own in kernels.items():
        nbytes = elements_nbytes(_meta.value(node)) if _leaves(node, own, kernels) else 0
        for source in node.all_input_nodes:
            root = view_root(source)
            if kernels.get(root) != own and (root, own) not in read:
                read.add((root, own))
                nbytes += _read_nbytes(node, source)
        traffic[node] = nbytes
    return traffic


def _kernels(order: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """For each loop, the number of its kernel."""
    numbers: dict[fx.Node, int] = {}
    current, in_backward = 0, False
    for node in order:
        if is_tangent(node) and not in_backward:
            in_backward = True
            current += 1
        if node.op != "call_function" or base_of(node) is not None:
            continue
        if kernel(node) is not Kernel.EXTERN:
            numbers[node] = current
        elif block_nbytes(_meta.value(node)) or items_of(_meta.value(node)) is not None:
            current += 1
    return numbers


def _leaves(node: fx.Node, own: int, kernels: dict[fx.Node, int]) -> bool:
    """Whether something outside the node's kernel reads its value, directly or through views."""
    return any(
        _leaves(user, own, kernels) if base_of(user) is not None else kernels.get(user) != own
        for user in node.users
    )


def _read_nbytes(node: fx.Node, source: fx.Node) -> int:
    """Bytes of ``source`` that ``node`` reads."""
    value = _meta.value(source)
    nbytes = min(block_nbytes(value), elements_nbytes(value))
    if packet_name(node).rpartition(".")[2] in _PICKS:
        return min(nbytes, elements_nbytes(_meta.value(node)))
    return nbytes

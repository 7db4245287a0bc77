"""Discrete choices of the forward that a second run could make differently.

An index, a comparison or a rounded value jumps where its input moves by one rounding. If the
forward used it, the backward must use the same: the gradient of one choice is not that of another,
and the sizes of what follows may differ. So such a choice is kept, unless what it is made from is
replayed bit for bit. That depends on who runs it:

- op by op, a second run of a kernel on the same bits gives the same bits; only kernels that add up
  by atomic operations, on CUDA, do not;
- compiled, the forward and the backward fuse differently, and with them the roundings: of bf16
  values that stay in registers, of products and sums that become one instruction. Only what is
  moved, not computed, is the same: inputs, random numbers (whose seed is kept), their views.

A choice that only the backward reads (the mask of relu, the sign in the gradient of abs, indices of
a maximum whose value alone the forward used) was none of the forward's: those functions are
continuous, and either side's derivative is as good at the jump. Nor do comparisons with infinity
turn over by a rounding.

Top-k routing is kept even where it would be replayed: where a router sends its tokens decides what
all that follows computes, and indices are small.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from gcpass._problem import Phase
from gcpass.fx import _compat, _meta
from gcpass.fx._call import items_of, packet_name
from gcpass.fx._random import is_random
from gcpass.fx._views import base_of

# Values of floating point that jump, as integers do.
_JUMPING = {
    f"aten.{name}" for name in ("sign", "sgn", "round", "floor", "ceil", "trunc", "heaviside")
}
_EXACT_TESTS = {f"aten.{name}" for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf")}
_MOVING = {
    f"aten.{name}"
    for name in ("clone", "index", "index_select", "gather", "embedding", "cat", "where", "full",
                 "copy", "masked_fill", "constant_pad_nd", "flip", "repeat", "roll", "neg",
                 "scalar_tensor", "full_like", "zeros_like", "ones_like", "zeros", "ones", "stack",
                 "new_full", "new_zeros", "new_ones", "empty_like", "arange", "lift_fresh_copy")
}  # fmt: skip
_MOVING |= {"prims.iota"}
_ATOMIC = {
    f"aten.{name}"
    for name in ("scatter_add", "index_add", "index_put", "scatter_reduce", "index_reduce",
                 "put", "embedding_dense_backward", "_embedding_bag", "histc", "bincount",
                 "grid_sampler_2d_backward", "upsample_bilinear2d_backward", "_ctc_loss")
}  # fmt: skip
_ROUTING = ("aten.topk",)
_NONDETERMINISTIC = getattr(torch.Tag, "nondeterministic_bitwise", None)


def drifting_choices(
    order: list[fx.Node], phases: dict[fx.Node, Phase], codegen: str
) -> set[fx.Node]:
    """The nodes whose discrete values the forward uses and a second run might not reproduce.

    Args:
        order: the joint graph's nodes, in running order.
        phases: when each runs.
        codegen: who runs them: ``"eager"`` or ``"inductor"``.
    """
    drifts: dict[fx.Node, bool] = {}
    found: set[fx.Node] = set()
    for node in order:
        inexact = any(drifts[r] for r in node.all_input_nodes if r in drifts)
        if node.op != "call_function":
            drifts[node] = False
        elif node.target is operator.getitem or base_of(node) is not None:
            drifts[node] = inexact and _is_floating(node)
        else:
            if (inexact or packet_name(node) in _ROUTING) and _chooses(node, phases):
                found.add(node)
            drifts[node] = node not in found and _drifts(node, inexact, codegen)
    return found


def _drifts(node: fx.Node, inexact: bool, codegen: str) -> bool:
    """Whether a second run of ``node`` may give floating-point values with other bits."""
    if is_random(node) or not _has_floating(_meta.value(node)):
        return False
    if inexact:
        return True
    if codegen == "inductor":
        computes = any(_has_floating(_meta.value(read)) for read in node.all_input_nodes)
        moves = packet_name(node) in _MOVING or _is_cast_for_a_choice(node)
        return computes and not moves
    says_so = _NONDETERMINISTIC in getattr(node.target, "tags", ())
    return says_so or (packet_name(node) in _ATOMIC and _on_accelerator(node))


def _is_cast_for_a_choice(node: fx.Node) -> bool:
    """Whether ``node`` only casts, for choices alone: dropout's mask of a bf16 value.

    The choice is smaller than the cast, so that no plan keeps the cast instead; computed in the
    kernel of the choice both times, it is rounded alike.
    """
    return packet_name(node) == "prims.convert_element_type" and all(map(_is_discrete, node.users))


def _chooses(node: fx.Node, phases: dict[fx.Node, Phase]) -> bool:
    """Whether ``node`` makes a discrete value that the forward's outputs depend on."""
    if phases[node] is not Phase.FORWARD or _is_exact_test(node):
        return False
    value = _meta.value(node)
    if items_of(value) is not None:
        return any(
            phases[user] is Phase.FORWARD and _is_discrete(user)
            for user in node.users
            if user in phases and user.target is operator.getitem
        )
    return _is_discrete(node) or packet_name(node) in _JUMPING


def _is_exact_test(node: fx.Node) -> bool:
    name = packet_name(node)
    if name in _EXACT_TESTS:
        return True
    numbers = [a for a in node.args if isinstance(a, float)]
    return name in ("aten.eq", "aten.ne") and any(map(math.isinf, numbers))


def _is_discrete(node: fx.Node) -> bool:
    value = _meta.value(node)
    if isinstance(value, torch.Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return _compat.is_symbol(node)


def _is_floating(node: fx.Node) -> bool:
    return _has_floating(_meta.value(node))


def _has_floating(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_floating, value))
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, (float, torch.SymFloat))


def _on_accelerator(node: fx.Node) -> bool:
    value = _meta.value(node)
    values = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(v, torch.Tensor) and v.device.type != "cpu" for v in values)

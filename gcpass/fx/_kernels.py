"""How Inductor runs an op: alone, or inside other kernels (`torch/_inductor/lowering.py`)."""

from __future__ import annotations

import torch
from torch import fx

from gcpass._problem import Kernel
from gcpass.fx import _meta

_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "any", "all", "argmax",
    "argmin", "prod", "prepare_softmax_online", "logsumexp", "_log_softmax", "_softmax",
}  # fmt: skip
_POINTWISE = {
    "convert_element_type", "_to_copy", "full", "full_like", "zeros_like", "ones_like", "iota",
    "arange", "scalar_tensor", "index", "gather", "embedding", "constant_pad_nd", "inductor_random",
    "inductor_randint", "inductor_lookup_seed", "copy", "repeat", "slice_scatter", "select_scatter",
    "zeros", "ones", "clone", "copy_", "masked_fill", "_low_memory_max_pool_offsets_to_indices",
    "upsample_nearest2d", "avg_pool2d", "triu", "tril", "expand_as", "flip",
}  # fmt: skip


def kernel(node: fx.Node) -> Kernel:
    """How Inductor runs the node (`torch/_inductor/lowering.py`)."""
    if node.op != "call_function":
        return Kernel.EXTERN
    packet = getattr(node.target, "_overloadpacket", None)
    name = str(packet).rpartition(".")[2]
    if name in _REDUCTIONS:
        return Kernel.REDUCTION
    if name == "cat":  # on other devices computed inside its readers
        value = _meta.value(node)
        on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
        return Kernel.JOIN if on_cpu else Kernel.POINTWISE
    if name in _POINTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return Kernel.POINTWISE
    return Kernel.EXTERN

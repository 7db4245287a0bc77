"""Floating-point operations of one call, and what kind of work it is."""

from __future__ import annotations

from typing import Any

import torch

from gcpass.fx import _compat
from gcpass.fx._call import Call, shape

CPU_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
_GROUPED = ("aten._grouped_mm", "aten._scaled_grouped_mm")
_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention", "flex_attention")
_RANDOM = {
    "rand", "randn", "rand_like", "randn_like", "randint", "bernoulli", "native_dropout",
    "multinomial", "exponential", "rrelu_with_noise", "normal", "uniform", "log_normal", "cauchy",
    "geometric", "poisson", "dropout",
}  # fmt: skip
_TRANSCENDENTAL = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logsumexp", "erf",
    "erfc", "erfinv", "tanh", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "gelu", "gelu_backward", "silu",
    "silu_backward", "softplus", "mish", "elu", "celu", "selu", "log_sigmoid", "lgamma", "digamma",
    "_softmax", "_log_softmax", "prepare_softmax_online", "log_sigmoid_forward",
}  # fmt: skip


def flops(call: Call) -> int | None:
    """Floating-point operations, by torch's own formula where it has one; None if nobody has.

    torch counts none for grouped matrix products and for attention on the CPU; here a grouped
    product is the sum of its groups', and attention is counted as on CUDA: two products of
    [length, keys, width] in the forward, five in the backward.
    """
    if call.packet in (CPU_ATTENTION, CPU_ATTENTION + "_backward"):
        return _cpu_attention(call)
    if call.packet in _GROUPED:
        left, right = map(shape, call.tensors[:2])
        groups = left[0] if len(left) == len(right) == 3 else 1
        return 2 * groups * left[-2] * left[-1] * right[-1]
    packet = getattr(call.node.target, "_overloadpacket", call.node.target)
    formula = _compat.flop_registry.get(packet)
    if formula is None:
        return None
    arguments, keywords = _concrete(call.arguments), _concrete(call.keywords)
    return int(formula(*arguments, **keywords, out_val=_concrete(call.value)))


def work(call: Call) -> str:
    """The kind of work that its FLOPs are: ``matmul``, ``convolution`` or ``attention``."""
    if "convolution" in call.packet:
        return "convolution"
    return "attention" if any(name in call.packet for name in _ATTENTION) else "matmul"


def arithmetic(call: Call) -> str | None:
    """What bounds pointwise work other than traffic, as profiles name it; None for nothing."""
    name = call.packet.rpartition(".")[2]
    if name.startswith("inductor_rand"):
        return "fused_random"
    if name in _RANDOM:
        return "random"
    if name == "pow" and isinstance(call.arguments[-1], (int, float)):
        halves = 2 * call.arguments[-1]
        return None if halves == int(halves) else "transcendental"  # products and square roots
    return "transcendental" if name in _TRANSCENDENTAL else None


def _cpu_attention(call: Call) -> int:
    backward = call.packet.endswith("_backward")
    query, key, value = (shape(t) for t in call.tensors[backward : backward + 3])
    product = 2 * query[0] * query[1] * query[2] * key[2]
    if backward:  # scores again; gradients of scores and values; of queries and keys
        return product * (3 * query[3] + 2 * value[3])
    return product * (query[3] + value[3])


def _concrete(value: Any) -> Any:
    """``value`` with symbolic sizes replaced by their hints."""
    if isinstance(value, (list, tuple)):
        return type(value)(_concrete(v) for v in value)
    if isinstance(value, dict):
        return {k: _concrete(v) for k, v in value.items()}
    if isinstance(value, torch.SymInt):
        return _compat.hint(value)
    if isinstance(value, torch.Tensor) and any(not isinstance(s, int) for s in value.shape):
        return value.new_empty(shape(value))
    return value

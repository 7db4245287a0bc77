"""Seconds and workspace of one op, from its shapes.

The **reference** model prices every op on a fixed device, so that plans stay comparable between
machines: F = 989e12 x 0.6 FLOP/s and W = 3.35e12 x 0.8 B/s (the data-sheet figures of an H100 SXM
at bf16 without sparsity, and of its HBM3, times what kernels commonly reach).

    views and getitem                                    0
    ops torch's partitioner lists as recomputable        0.5 x output bytes / W
      and that have no flop formula
    ops of unknown cost (custom ops, user kernels)       UNKNOWN x (input + output bytes) / W
    every other op                                       max(flops / F, (input + output bytes) / W)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from gcpass._errors import OptionError, did_you_mean
from gcpass._units import PICOSECONDS
from gcpass.fx import _compat, _meta

UNKNOWN_FACTOR = 10  # a custom op is taken to do this much more than read and write its operands

_KNOWN_NAMESPACES = ("aten", "prims", "prim", "inductor_prims", "_c10d_functional", "quantized")
_CPU_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
_SHRUNK_LOSSES = (
    "aten.mse_loss",
    "aten.smooth_l1_loss",
    "aten.soft_margin_loss",
    "aten.binary_cross_entropy",
)


@dataclass(frozen=True)
class Hardware:
    """What the roofline needs to know of a device.

    Attributes:
        name: how it is selected.
        flops_per_second: reachable matmul rate.
        bytes_per_second: reachable memory bandwidth.
        workspaces: count what the kernels of the tensors' own device allocate while they run.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    workspaces: bool = False


REFERENCE = Hardware("reference", 989e12 * 0.6, 3.35e12 * 0.8)
_KNOWN = {"reference": REFERENCE, "auto": dataclasses.replace(REFERENCE, workspaces=True)}


def find_hardware(name: str) -> Hardware:
    """The profile called ``name``; for now ``"auto"`` has the reference model's speeds."""
    if name not in _KNOWN:
        raise OptionError(f"hardware={name!r} is not known; {did_you_mean(name, _KNOWN)}")
    return _KNOWN[name]


def tensor_nbytes(value: object) -> int:
    """Bytes of the block that a (fake) tensor of these sizes and strides needs."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    sizes = [_compat.hint(s) for s in value.shape]
    if 0 in sizes:
        return 0
    strides = [_compat.hint(s) for s in value.stride()]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return extent * value.dtype.itemsize


def result_nbytes(node: fx.Node, value: object) -> int:
    """Bytes of the block that ATen's kernel of ``node`` returns its value in.

    Some losses compute every element into the result, and shrink it to one: its block stays.
    """
    if str(getattr(node.target, "_overloadpacket", "")) not in _SHRUNK_LOSSES:
        return tensor_nbytes(value)
    return max(tensor_nbytes(value), *(tensor_nbytes(_meta.value(n)) for n in node.all_input_nodes))


def _elements_nbytes(value: object) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_elements_nbytes(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return 0
    count = value.dtype.itemsize
    for size in value.shape:
        count *= _compat.hint(size)
    return count


def op_picoseconds(
    node: fx.Node, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any, hw: Hardware
) -> int:
    """Time of one run of ``node``.

    Args:
        node: a call in the joint graph, not a view.
        arguments: its arguments, nodes replaced by their fake values.
        keywords: its keyword arguments, likewise.
        value: its own fake value.
        hw: the device.

    Returns:
        Whole picoseconds.
    """
    target = node.target
    out_nbytes = _elements_nbytes(value)
    in_nbytes = sum(_elements_nbytes(a) for a in (*arguments, *keywords.values()))
    flops = _flops(target, arguments, keywords, value)
    if flops is None and _compat.is_default_recomputable(target):
        seconds = 0.5 * out_nbytes / hw.bytes_per_second
    else:
        traffic = (in_nbytes + out_nbytes) / hw.bytes_per_second
        if flops is None and not _is_known(target):
            traffic *= UNKNOWN_FACTOR
        seconds = max((flops or 0) / hw.flops_per_second, traffic)
    return round(seconds * PICOSECONDS)


def traffic_picoseconds(value: Any, hw: Hardware) -> int:
    """Time to write ``value`` to memory once and read it back once."""
    return round(2 * _elements_nbytes(value) / hw.bytes_per_second * PICOSECONDS)


def _is_known(target: object) -> bool:
    return getattr(target, "namespace", "") in _KNOWN_NAMESPACES


def _flops(
    target: object, arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any
) -> int | None:
    """Floating-point operations by torch's own formula; None where it has none."""
    packet = getattr(target, "_overloadpacket", target)
    if str(packet) == _CPU_ATTENTION:
        query, key, val = (_shape(a) for a in arguments[:3])
        batch_heads = query[0] * query[1]
        return 2 * batch_heads * query[2] * key[2] * (query[3] + val[3])
    formula = _compat.flop_registry.get(packet)
    if formula is None:
        return None
    return int(formula(*_concrete(arguments), **_concrete(keywords), out_val=_concrete(value)))


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(_compat.hint(s) for s in tensor.shape)


def _concrete(value: Any) -> Any:
    """``value`` with symbolic sizes replaced by their hints."""
    if isinstance(value, (list, tuple)):
        return type(value)(_concrete(v) for v in value)
    if isinstance(value, dict):
        return {k: _concrete(v) for k, v in value.items()}
    if isinstance(value, torch.SymInt):
        return _compat.hint(value)
    if isinstance(value, torch.Tensor) and any(not isinstance(s, int) for s in value.shape):
        return value.new_empty(_shape(value))
    return value


def workspace_nbytes(
    node: fx.Node, arguments: tuple[Any, ...], value: Any, channels_last: bool = False
) -> int:
    """Bytes that ``node`` allocates while it runs, beyond what it reads and returns.

    Measured on ATen's CPU kernels in fp32: oneDNN convolutions reorder their operands into blocked
    copies, of which channels-last images need none and only the weight's remain; batch norm's
    backward makes a contiguous one; attention has scores of one tile for each thread. Other
    devices: taken as zero.
    """
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if not tensors or tensors[0].device.type != "cpu":
        return 0
    packet = str(getattr(node.target, "_overloadpacket", ""))
    if packet == "aten.convolution":
        data, weight = tensors[:2]
        if channels_last:
            return _elements_nbytes(weight)
        blocked = _blocked_nbytes(value)
        copies = _blocked_nbytes(data) + blocked - _elements_nbytes(value)
        return max(copies + _elements_nbytes(weight), blocked)
    if packet == "aten.convolution_backward":
        grad, data, weight = tensors[:3]
        if channels_last:
            return 2 * _elements_nbytes(weight)
        nbytes = _blocked_nbytes(grad) + _elements_nbytes(weight)
        return nbytes + (_blocked_nbytes(data) if arguments[-1][0] else 0)
    if packet == _CPU_ATTENTION:
        return _attention_nbytes(*tensors[:2], is_backward=False)
    if packet == _CPU_ATTENTION + "_backward":
        return _attention_nbytes(*tensors[1:3], is_backward=True)
    if packet == "aten.native_dropout_backward":
        return _elements_nbytes(tensors[0])  # the mask as numbers, then the unscaled product
    if packet == "aten.soft_margin_loss_backward":
        return 2 * _elements_nbytes(value)
    if packet == "aten.native_batch_norm_backward":
        return _elements_nbytes(tensors[1])
    return 0


def dense_copies_nbytes(node: fx.Node, arguments: tuple[Any, ...]) -> int:
    """Bytes of the dense copies that a convolution first makes of operands with gaps in between.

    A slice of a larger gradient is one: the backward of ``cat``.
    """
    packet = str(getattr(node.target, "_overloadpacket", ""))
    if packet not in ("aten.convolution", "aten.convolution_backward"):
        return 0
    operands = [a for a in arguments if isinstance(a, torch.Tensor)]
    return sum(_elements_nbytes(a) for a in operands if tensor_nbytes(a) > _elements_nbytes(a))


def _attention_nbytes(query: torch.Tensor, key: torch.Tensor, *, is_backward: bool) -> int:
    """Tiles of scores of ATen's CPU attention (sizes: FlashAttentionKernel.cpp), in fp32 and, if
    the operands are of a lower precision, in that; the forward also has rows of its output."""
    _, _, length, width = _shape(query)
    rows = min(256 if length >= 768 else 64 if length >= 192 else 32, length)
    columns = min(512, _shape(key)[2])
    itemsize = 4 if query.dtype == torch.float32 else 4 + query.dtype.itemsize
    threads = torch.get_num_threads()
    if is_backward:
        return threads * 2 * rows * columns * itemsize + 4 * rows
    return threads * rows * (columns * itemsize + 4 * (2 + width))


def _blocked_nbytes(image: torch.Tensor) -> int:
    """Size of oneDNN's copy of an image batch: channels in blocks of 16."""
    channels = _compat.hint(image.shape[1])
    padded = -(-channels // 16) * 16
    return _elements_nbytes(image) // max(channels, 1) * padded

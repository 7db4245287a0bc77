"""Bytes that ATen's kernels allocate beyond what they read and return."""

from __future__ import annotations

import torch
from torch import fx

from gcpass.fx import _compat, _meta
from gcpass.fx._call import Call, block_nbytes, elements, elements_nbytes, packet_name, shape
from gcpass.fx._flops import CPU_ATTENTION

_SHRUNK_LOSSES = (
    "aten.mse_loss",
    "aten.smooth_l1_loss",
    "aten.soft_margin_loss",
    "aten.binary_cross_entropy",
)

_INDEX_NBYTES = 8

_PROMOTING = frozenset(
    f"aten.{name}"
    for name in (
        "mul",
        "add",
        "sub",
        "div",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    )
)


def result_nbytes(node: fx.Node, value: object) -> int:
    """Bytes of the block that ATen's kernel of ``node`` returns its value in.

    Some losses compute every element into the result, and shrink it to one: its block stays.
    """
    if packet_name(node) not in _SHRUNK_LOSSES:
        return block_nbytes(value)
    return max(block_nbytes(value), *(block_nbytes(_meta.value(n)) for n in node.all_input_nodes))


def workspace_nbytes(call: Call, channels_last: bool = False) -> int:
    """Bytes that a call allocates while it runs, beyond what it reads and returns.

    Measured on ATen's CPU kernels in fp32: oneDNN convolutions reorder their operands into blocked
    copies, of which channels-last images need none and only the weight's remain; batch norm's
    backward makes a contiguous one; attention has scores of one tile for each thread; sorts hold
    places beside values. Other devices: taken as zero.
    """
    tensors = call.tensors
    if not tensors or tensors[0].device.type != "cpu":
        return 0
    packet = call.packet
    if packet == "aten.convolution":
        data, weight = tensors[:2]
        if channels_last:
            return elements_nbytes(weight)
        blocked = _blocked_nbytes(call.value)
        copies = _blocked_nbytes(data) + blocked - elements_nbytes(call.value)
        return max(copies + elements_nbytes(weight), blocked)
    if packet == "aten.convolution_backward":
        grad, data, weight = tensors[:3]
        if channels_last:
            return 2 * elements_nbytes(weight)
        nbytes = _blocked_nbytes(grad) + elements_nbytes(weight)
        return nbytes + (_blocked_nbytes(data) if call.arguments[-1][0] else 0)
    if packet == CPU_ATTENTION:
        return _attention_nbytes(*tensors[:2], is_backward=False)
    if packet == CPU_ATTENTION + "_backward":
        return _attention_nbytes(*tensors[1:3], is_backward=True)
    if packet == "aten.native_dropout_backward":
        return elements_nbytes(tensors[0])  # the mask as numbers, then the unscaled product
    if packet == "aten.soft_margin_loss_backward":
        return 2 * elements_nbytes(call.value)
    if packet == "aten.native_batch_norm_backward":
        return elements_nbytes(tensors[1])
    if packet == "aten.sort":
        return _INDEX_NBYTES * _sorted_length(call)
    if packet == "aten.kthvalue":
        return elements_nbytes(tensors[0]) + _INDEX_NBYTES * elements(tensors[0])
    return 0


def promoted_copies_nbytes(call: Call) -> int:
    """Bytes of the copies in the common type that ATen's CPU makes of operands of other types.

    A mask multiplied by numbers is one: dropout.
    """
    if call.packet not in _PROMOTING or any(a.device.type != "cpu" for a in call.tensors):
        return 0
    common = torch.result_type(*call.arguments[:2])
    return sum(elements(a) * common.itemsize for a in call.tensors if a.dtype != common and a.dim())


def dense_copies_nbytes(call: Call) -> int:
    """Bytes of the dense copies that a convolution first makes of operands with gaps in between.

    A slice of a larger gradient is one: the backward of ``cat``.
    """
    if call.packet not in ("aten.convolution", "aten.convolution_backward"):
        return 0
    return sum(elements_nbytes(a) for a in call.tensors if block_nbytes(a) > elements_nbytes(a))


def _sorted_length(call: Call) -> int:
    """Elements that a sort puts in order at once: its kernel holds their places beside them."""
    sizes = shape(call.tensors[0])
    given = (a for a in call.arguments[1:] if isinstance(a, int) and not isinstance(a, bool))
    dim = call.keywords.get("dim", next(given, -1))
    return sizes[dim] if sizes else 1


def _attention_nbytes(query: torch.Tensor, key: torch.Tensor, *, is_backward: bool) -> int:
    """Tiles of scores of ATen's CPU attention (sizes: FlashAttentionKernel.cpp), in fp32 and, if
    the operands are of a lower precision, in that; the forward also has rows of its output."""
    _, _, length, width = shape(query)
    rows = min(256 if length >= 768 else 64 if length >= 192 else 32, length)
    columns = min(512, shape(key)[2])
    itemsize = 4 if query.dtype == torch.float32 else 4 + query.dtype.itemsize
    threads = torch.get_num_threads()
    if is_backward:
        return threads * 2 * rows * columns * itemsize + 4 * rows
    return threads * rows * (columns * itemsize + 4 * (2 + width))


def _blocked_nbytes(image: torch.Tensor) -> int:
    """Size of oneDNN's copy of an image batch: channels in blocks of 16."""
    channels = _compat.hint(image.shape[1])
    padded = -(-channels // 16) * 16
    return elements_nbytes(image) // max(channels, 1) * padded

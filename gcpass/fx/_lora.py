"""Low-rank adapters and 4-bit base weights, as modules that are planned like any others.

The adapters are LoRA's (Hu et al. 2021, section 4.1): y = W x + (alpha / r) B A x, with W frozen.
The 4-bit weights are QLoRA's NF4 with double quantisation (Dettmers et al. 2023, section 3): 4 bits
a weight, an 8-bit scale for each 64 of them, and a float32 scale for each 256 of those.

They are gcpass's own, and small, for only what they hold and run matters here: a library's 4-bit
layers are CUDA kernels, which cannot be traced without a CUDA device, and its adapters on top of
them ask for those very classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from gcpass._errors import OptionError, did_you_mean
from gcpass._workload import Lora

_BLOCK, _SUPERBLOCK = 64, 256
_NF4 = (  # quantiles of a normal distribution (Dettmers et al. 2023, appendix E)
    -1.0, -0.6961928, -0.5250731, -0.39491748, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip


class Quantized(nn.Module):
    """A frozen linear layer whose weight is held in 4 bits and dequantised where it is used.

    Args:
        linear: the layer whose shape it has; its weight is not looked at.
    """

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.in_features, self.out_features = _features(linear)
        weights = self.out_features * self.in_features
        scales = math.ceil(weights / _BLOCK)
        self.register_buffer("packed", torch.zeros(math.ceil(weights / 2), dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(scales, dtype=torch.uint8))
        supers = math.ceil(scales / _SUPERBLOCK)
        self.register_buffer("superscales", torch.zeros(supers, dtype=torch.float32))
        # One for the backward, too: with the same operands, what both directions have in common
        # would be one expression, and its value kept from one to the other.
        self.register_buffer("superscales_backward", torch.zeros(supers, dtype=torch.float32))
        self.register_buffer("codebook", torch.tensor(_NF4, dtype=torch.float32))
        self.register_buffer("codebook_backward", torch.tensor(_NF4, dtype=torch.float32))
        bias = linear.bias
        self.register_buffer("bias", bias.detach() if isinstance(bias, Tensor) else None)
        self.packed_parameters = sum(p.numel() for p in linear.parameters())  # no longer parameters
        # Models ask their layers' weights for the data type to convert to.
        self.register_buffer("weight", _weight(linear).new_empty(0))

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features]; the result is [..., out_features]."""
        product: Callable[..., Tensor] = _Product.apply
        y = product(
            x,
            self.packed,
            self.scales,
            self.superscales,
            self.superscales_backward,
            self.codebook,
            self.codebook_backward,
            (self.out_features, self.in_features),
            self.weight.dtype,
        )
        return y + self.bias if isinstance(self.bias, Tensor) else y


class _Product(torch.autograd.Function):
    """x W^T, where W is dequantised in the forward and once more in the backward."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        packed: Tensor,
        scales: Tensor,
        superscales: Tensor,
        superscales_backward: Tensor,
        codebook: Tensor,
        codebook_backward: Tensor,
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(packed, scales, superscales_backward, codebook_backward)
        ctx.shape, ctx.dtype = shape, dtype
        return functional.linear(x, dequantize(packed, scales, superscales, codebook, shape, dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        packed, scales, superscales, codebook = ctx.saved_tensors
        held = packed, scales, superscales, codebook
        weight = dequantize(*held, ctx.shape, ctx.dtype, again=True)
        return grad @ weight, *[None] * 8


def dequantize(
    packed: Tensor,
    scales: Tensor,
    superscales: Tensor,
    codebook: Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    *,
    again: bool = False,
) -> Tensor:
    """The weight that 4-bit codes stand for.

    Args:
        packed: uint8, two codes a byte, the first in the high bits.
        scales: uint8, one for each 64 weights.
        superscales: float32, one for each 256 scales; a scale is their product / 255.
        codebook: float32 [16].
        shape: of the weight.
        dtype: of the result.
        again: compute the same by other ops, so that it is no expression in common with the first.
    """
    count = shape[0] * shape[1]
    halves = (packed // 16, packed % 16) if again else (packed >> 4, packed & 15)
    codes = torch.stack(halves, dim=-1).reshape(-1)[:count]
    parts = scales * (1 / 255) if again else scales / 255
    wide = superscales.repeat_interleave(_SUPERBLOCK, output_size=len(superscales) * _SUPERBLOCK)
    factors = wide[: len(scales)] * parts
    each = factors.repeat_interleave(_BLOCK, output_size=len(factors) * _BLOCK)[:count]
    return (codebook[codes.to(torch.int64)] * each).to(dtype).reshape(shape)


class Adapted(nn.Module):
    """A frozen layer and its low-rank adapter."""

    def __init__(self, base: nn.Module, like: nn.Module, lora: Lora) -> None:
        super().__init__()
        self.base = base
        inner, outer = _features(like)
        dtype = _weight(like).dtype
        self.lora_a = nn.Linear(inner, lora.r, bias=False, dtype=dtype)
        self.lora_b = nn.Linear(lora.r, outer, bias=False, dtype=dtype)
        self.scaling = lora.alpha / lora.r
        self.dropout = nn.Dropout(lora.dropout)

    @property
    def weight(self) -> Tensor:
        """The layer's own, for models that ask for its data type."""
        return _weight(self.base)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features]; the result is [..., out_features]."""
        return self.base(x) + self.lora_b(self.lora_a(self.dropout(x))) * self.scaling


def adapt(model: nn.Module, lora: Lora | None, *, quantized: bool) -> None:
    """Freeze a model in place, put adapters on its linear layers, and their weights in 4 bits.

    The output layer is neither adapted nor quantised, as QLoRA has it.

    Args:
        model: with linear layers, of torch or of transformers (`Conv1D`, which is GPT-2's).
        lora: the adapters' settings; None only if the weights are to be quantised.
        quantized: whether the layers' weights are held in 4 bits.

    Raises:
        OptionError: no linear layer is of the targets.
    """
    lora = lora or Lora()
    head = _head(model)
    linears = {
        name: layer
        for name, layer in model.named_modules()
        if _is_linear(layer) and layer is not head
    }
    targets = [n for n in linears if not lora.targets or n.rpartition(".")[2] in lora.targets]
    if not targets:
        known = {name.rpartition(".")[2] for name in linears}
        asked = "+".join(lora.targets)
        raise OptionError(
            f"--lora targets={asked}: no linear layer is called that; {did_you_mean(asked, known)}"
            if known
            else "--lora, --qlora: the model has no linear layers to adapt"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, layer in linears.items():
        base = Quantized(layer) if quantized else layer
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(
            owner,
            name.rpartition(".")[2],
            Adapted(base, layer, lora) if name in targets else base,
        )


def _is_linear(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Linear, Conv1D))


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def _features(layer: nn.Module) -> tuple[int, int]:
    """Of inputs and of outputs."""
    rows, columns = _weight(layer).shape
    return (rows, columns) if isinstance(layer, Conv1D) else (columns, rows)


def _head(model: nn.Module) -> nn.Module | None:
    find = getattr(getattr(model, "model", model), "get_output_embeddings", None)
    head = find() if callable(find) else None
    return head if isinstance(head, nn.Module) else None

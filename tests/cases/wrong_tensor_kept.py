"""What is kept is the small one: parameters not their casts, slices not what they are cut from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._case import Run, case, leaf, plain


class CastingLinear(torch.autograd.Function):
    """Multiplies in bf16 with fp32 parameters, and casts them again in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        low = weight.to(torch.bfloat16)
        ctx.save_for_backward(x, low)
        return x @ low.t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None]:
        x, low = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1]
        return grads[0] @ low, (grads[0].t() @ x).float() if wanted else None


@case(dtype=torch.float32, weighs=False)
def casts_of_parameters(run: Run) -> None:
    """A cast of a weight costs one read to make again: keeping it costs half as much as the model.

    Six frozen weights of 256 x 256 in bf16 are 768 KiB, activations of a batch of 8 are 24 KiB.
    """
    weights, x = [plain(256, 256, seed=i) / 16 for i in range(6)], leaf(8, 256)

    def fn(x: Tensor) -> Tensor:
        x = x.bfloat16()
        for w in weights:
            x = torch.tanh(CastingLinear.apply(x, w))
        return x.float().square().sum()

    run.coarse = True
    run.step(run.compile(fn), x, wrt=[x])
    run.keeps_at_most(256 * 1024)


class Int8Linear(nn.Module):
    """A frozen int8 base with a low-rank adapter, as in QLoRA."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("base", torch.randint(-128, 127, (width, width), dtype=torch.int8))
        self.register_buffer("scale", torch.full((width, 1), 0.01))
        self.down = nn.Parameter(torch.randn(4, width) / 16)
        self.up = nn.Parameter(torch.randn(width, 4) / 16)

    def forward(self, x: Tensor) -> Tensor:
        dequantised = self.base.to(x.dtype) * self.scale
        return torch.tanh(F.linear(x, dequantised) + F.linear(F.linear(x, self.down), self.up))


@case()
def dequantised_weights(run: Run) -> None:
    """The int8 base is the input; its dequantised copy, eight times as large, is made again.

    Six copies of 128 x 128 float64 are 768 KiB; activations of 8 rows are 8 KiB each.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(Int8Linear(128) for _ in range(6)))
    run.step(run.compile(model), plain(8, 128, seed=5), wrt=model)
    run.keeps_at_most(256 * 1024)


@case()
def four_bit_weights(run: Run) -> None:
    """Two weights a byte, unpacked by shifts and a table: nothing unpacked is kept."""
    torch.manual_seed(0)
    packed = [torch.randint(0, 256, (128, 64), dtype=torch.uint8) for _ in range(4)]
    table, adapters = torch.linspace(-1, 1, 16), [leaf(128, 1, seed=i) for i in range(4)]

    def fn(x: Tensor, *adapters: Tensor) -> Tensor:
        for p, a in zip(packed, adapters, strict=True):
            codes = torch.stack([p & 15, p >> 4], -1).reshape(128, 128).long()
            x = torch.tanh(x @ (table[codes] / 12) + x @ a / 16)
        return x.square().sum()

    run.step(run.compile(fn), plain(8, 128), *adapters, wrt=adapters)
    run.keeps_at_most(256 * 1024)


@case()
def a_small_view_of_a_big_value(run: Run) -> None:
    """The backward wants one row of 64 that a product made: 1 KiB, not the 64 KiB it lies in."""
    x, w = leaf(64, 128), leaf(128, 128, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        last = (x @ w)[-1]
        for _ in range(4):
            last = last.sin() + (x @ w)[-1].cos() * last
        return last.exp().sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case()
def the_last_token_of_each_layer(run: Run) -> None:
    """A slice of every layer's output goes to the loss; the whole is wanted by nobody else."""
    w = [leaf(64, 64, seed=i) for i in range(4)]

    def fn(x: Tensor, *w: Tensor) -> Tensor:
        total = x.new_zeros(())
        for v in w:
            total = total + (x @ v)[:, -1].exp().log1p().sum()
        return total

    run.step(run.compile(fn), plain(64, 64) / 8, *w, wrt=w)


@case(dtype=torch.float32)
def fp32_logits_of_a_loss(run: Run) -> None:
    """Logits cast up for the loss: bf16 ones and the log-sum-exp give the fp32 ones again."""
    torch.manual_seed(0)
    hidden, head = leaf(32, 16), leaf(512, 16, seed=1)
    labels = torch.randint(512, (32,))

    def fn(hidden: Tensor, head: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, head).float(), labels)

    run.step(run.compile(fn), hidden, head, wrt=[hidden, head])


@case()
def constants(run: Run) -> None:
    """Masks and position tables made in the function are made again, or kept, but not wrong."""
    x = leaf(32, 32)

    def fn(x: Tensor) -> Tensor:
        mask = torch.ones(32, 32, dtype=torch.bool).tril()
        positions = torch.arange(32, dtype=x.dtype)
        angles = positions[:, None] * torch.exp(-positions[None, :] / 8)
        scores = (x * angles.cos()) @ (x * angles.sin()).t()
        return scores.masked_fill(~mask, -1e9).softmax(-1).square().sum()

    run.step(run.compile(fn), x, wrt=[x])


@case()
def input_and_output_of_a_norm(run: Run) -> None:
    """A norm's backward wants its input or its output, not both."""
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.LayerNorm(64), nn.Linear(64, 64))]
    run.step(run.compile(nn.Sequential(*layers)), plain(64, 64), wrt=nn.Sequential(*layers))


@case()
def a_parameter_transposed_and_scaled(run: Run) -> None:
    """Weight normalisation: w is g v / |v|, of the parameter's size, and cheap to make."""
    v, g = [leaf(64, 64, seed=i) for i in range(4)], leaf(64, 1, seed=9)

    def fn(x: Tensor, g: Tensor, *v: Tensor) -> Tensor:
        for w in v:
            x = torch.tanh(x @ (g * w / w.norm(dim=1, keepdim=True)).t())
        return x.sum()

    run.step(run.compile(fn), plain(4, 64), g, *v, wrt=[g, *v])

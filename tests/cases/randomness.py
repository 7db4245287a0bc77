"""The backward uses the forward's sample, at every budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ._case import Run, case, leaf, plain
from ._trained import train


def _check(run: Run, noisy: Callable[[Tensor], Tensor], *sizes: int, times: int = 2) -> None:
    """``y = noisy(h) @ w``: <dL/dw, w> = sum(y) only if both passes drew one sample.

    And with loss = sum(y), the gradient of w alone holds the sample: sum over rows of noisy(h).
    """
    x, w = plain(16, 32), leaf(32, 8, seed=3)
    body = leaf(32, 32, seed=2)

    def fn(x: Tensor, body: Tensor, w: Tensor) -> Tensor:
        return (noisy(torch.tanh(x @ body).exp()) @ w).sum()

    call = run.compile(fn)
    before = None
    for _ in range(times):
        loss = run.step(call, x, body, w, wrt=[body, w], times=1)
        run.agree("sum(y) by the gradient", (w.grad * w).sum(), loss)
        if before is not None:
            run.agree("another sample each step", bool(torch.equal(loss, before)), False)
        before = loss


def _homogeneous(run: Run, noisy: Callable[[Tensor], Tensor]) -> None:
    """L homogeneous of degree 1 in x: <dL/dx, x> = L only with one sample in both passes."""
    x = leaf(16, 32)

    def fn(x: Tensor) -> Tensor:
        h = noisy(x * 2)
        return noisy(h.relu() - 0.1 * (-h).relu()).sum()

    loss = run.step(run.compile(fn), x, wrt=[x])
    run.agree("<dL/dx, x> = L", (x.grad * x).sum(), loss)


@case(like_eager=False)
def dropout(run: Run) -> None:
    """A mask for each layer, kept; twice in a row, with another mask each time."""
    _check(run, lambda h: F.dropout(F.dropout(h, 0.3).sin(), 0.2))
    run.plan_keeps(lambda target: "rand" in target, every=False)  # but masks of a byte each


@case(like_eager=False)
def dropout_is_homogeneous(run: Run) -> None:
    """No eager run is needed to see two samples: <dL/dx, x> = L."""
    _homogeneous(run, lambda h: F.dropout(h, 0.4))


@case(like_eager=False, dtype=torch.float32)
def attention_dropout(run: Run) -> None:
    """Attention with dropout_p draws inside its kernel; a second run would draw again."""

    def noisy(h: Tensor) -> Tensor:
        q = h.view(1, 2, 16, 16)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).reshape(16, 32).sin()

    _check(run, noisy)


@case(like_eager=False)
def rand_like_noise(run: Run) -> None:
    """Multiplicative uniform noise."""
    _check(run, lambda h: (h * torch.rand_like(h)).sin())


@case(like_eager=False)
def randn_noise(run: Run) -> None:
    """Additive and multiplicative Gaussian noise, as in a VAE's reparametrisation."""
    _check(run, lambda h: (h + torch.randn(16, 32) * h.cos()).sin() * torch.randn_like(h))


@case(like_eager=False)
def randint_indices(run: Run) -> None:
    """Rows picked at random, twice."""
    _check(run, lambda h: h[torch.randint(0, 16, (16,))].sin() * h[torch.randperm(16)])


@case(like_eager=False)
def bernoulli_mask(run: Run) -> None:
    """A Bernoulli mask whose probability depends on the value."""
    _check(run, lambda h: (h * torch.bernoulli(torch.sigmoid(h.detach()))).sin())


@case(like_eager=False)
def multinomial_rows(run: Run) -> None:
    """Rows drawn by weights that the forward computed."""

    def noisy(h: Tensor) -> Tensor:
        rows = torch.multinomial(h.detach().abs().sum(1), 16, replacement=True)
        return h[rows].sin()

    _check(run, noisy)


@case(like_eager=False)
def exponential_noise(run: Run) -> None:
    """Gumbel noise from exponentials, drawn in place."""
    _check(run, lambda h: (h * torch.empty_like(h).exponential_()).sin())


@case(like_eager=False)
def rrelu(run: Run) -> None:
    """Random slopes: the gradient's slope is the forward's."""
    _homogeneous(run, lambda h: F.rrelu(h, 0.1, 0.9, training=True))


@case(like_eager=False)
def gumbel_softmax(run: Run) -> None:
    """A hard sample with a soft gradient."""
    _check(run, lambda h: F.gumbel_softmax(h, hard=True, dim=-1) * h.sin())


@case(like_eager=False)
def feature_dropout(run: Run) -> None:
    """Whole channels dropped, and alpha dropout."""
    _check(run, lambda h: F.alpha_dropout(F.dropout1d(h.view(2, 8, 32), 0.5).view(16, 32), 0.3))


@case(like_eager=False)
def normal_in_place(run: Run) -> None:
    """Noise drawn into a buffer that the step overwrites."""
    buffer = torch.zeros(16, 32)
    _check(run, lambda h: (h * buffer.normal_()).sin())


@case(like_eager=False)
def dropout_in_a_checkpointed_region(run: Run) -> None:
    """The region is recomputed; its random stream is replayed."""

    def noisy(h: Tensor) -> Tensor:
        region = lambda h: F.dropout(F.dropout(h.cos(), 0.3).sin(), 0.3).exp()
        return checkpoint(region, h, use_reentrant=False)

    _check(run, noisy)


@case(like_eager=False)
def attention_like_dropout_in_nested_checkpoints(run: Run) -> None:
    """Dropout of a softmax, in a checkpoint within a checkpoint."""

    def inner(h: Tensor) -> Tensor:
        return F.dropout((h @ h.t()).softmax(-1), 0.3) @ h

    def outer(h: Tensor) -> Tensor:
        return F.dropout(checkpoint(inner, h.sin(), use_reentrant=False), 0.2).sin()

    _check(run, lambda h: checkpoint(outer, h, use_reentrant=False))


@case(like_eager=False, weighs=False)
def dropout_with_a_dynamic_batch(run: Run) -> None:
    """One graph for several batch sizes; the mask has the size of the batch."""
    torch.manual_seed(0)
    body, w = nn.Linear(32, 32), leaf(32, 8, seed=3)
    fn = run.compile(
        lambda x: (F.dropout(F.dropout(body(x).tanh(), 0.3).exp(), 0.3) @ w).sum(), dynamic=True
    )
    for batch in (16, 6, 9):
        loss = run.step(fn, plain(batch, 32), wrt=[w], times=1)
        run.agree("sum(y) by the gradient", (w.grad * w).sum(), loss)


@case(like_eager=False)
def noise_that_only_the_backward_wants(run: Run) -> None:
    """Noise added to a value whose own gradient is taken through a product with it."""
    x, w = leaf(16, 32), leaf(32, 32, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        noise = torch.randn(16, 32)
        return ((x * noise) @ w * noise).sum()

    loss = run.step(run.compile(fn), x, w, wrt=[x, w])
    run.agree("in w", (w.grad * w).sum(), loss)
    run.agree("in x", (x.grad * x).sum(), loss)


class _Jittered(torch.autograd.Function):
    """The sine, whose gradient is jittered by draws of the forward and of the backward."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(torch.rand_like(h), torch.randn(16, 16))
        return h.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        uniform, normal = ctx.saved_tensors
        return grad * uniform + normal * torch.rand(16, 16)


@case()
def draws_that_only_the_backward_reads(run: Run) -> None:
    """Op by op every draw is eager's: each is made after those that stand before it.

    The gradient tells the samples apart: those of the forward that only the backward reads, drawn
    between two that the forward reads, and those of the backward, which follow all of them.
    """
    x, w = plain(16, 16), leaf(16, 16, seed=3)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w) + torch.randn(16, 16)
        first = (h * torch.rand(16, 16)) @ w
        jittered = _Jittered.apply(h)
        return (_Jittered.apply(first * torch.rand_like(h)) * jittered).exp().sum()

    run.step(run.compile(fn), x, w, wrt=[w])


@case()
def noise_of_a_region_at_the_smallest_peak(run: Run) -> None:
    """Found by the fuzz: a region's noise is drawn again, which without the region it may not be.

    Where no plan kept the budget, the one that let go of the region was taken: its peak, with all
    of the noise, is above that of the plan without a budget.
    """
    x = leaf(64, 64)

    def noisy(h: Tensor) -> Tensor:
        for _ in range(6):
            h = h * torch.randn_like(h)
        return h

    fn = run.compile(lambda x: checkpoint(noisy, x, use_reentrant=False).sum())
    loss = run.step(fn, x, wrt=[x])
    run.agree("<dL/dx, x> = L", (x.grad * x).sum(), loss)


@case()
def rows_drawn_in_a_region_that_saves_them(run: Run) -> None:
    """Found by the fuzz: what the user's policy says to save must not be drawn again, either.

    The rows were drawn twice where the budget let go of them, and the gradient went to other ones.
    """

    def fn(
        x: Tensor, w: Tensor, b: Tensor, dropout: Any, attention: Any, checkpoint: Any
    ) -> Tensor:
        def region(h: Tensor, centred: Tensor) -> Tensor:
            picked = F.relu(h[torch.randint(0, 32, (32,))])
            return centred.square().mean() + picked.square().mean()

        h = torch.where(x > 0, x, x)
        centred = h - h.mean(-1, keepdim=True)
        return checkpoint(region, F.silu(F.linear(h, w, b) / 8), centred, tags=(2, 0))

    train(run, fn)

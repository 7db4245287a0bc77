"""Sizes that are symbols: dynamic, derived, data-dependent, and numbers that are not sizes."""

from __future__ import annotations

import torch
import torch._dynamo
from torch import Tensor, nn

from ._case import Run, case, leaf, plain


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))


@case(weighs=False)
def dynamic_batch_and_sequence(run: Run) -> None:
    """One graph for all sizes."""
    model = _mlp()

    def fn(x: Tensor) -> Tensor:
        h = model(x.reshape(-1, 16)).reshape(x.shape)
        return (h.softmax(1) * x.shape[1] + h.sum() / x.shape[0]).square().mean()

    call = run.compile(fn, dynamic=True)
    for batch, length in ((4, 6), (3, 9), (8, 2)):
        run.step(call, plain(batch, length, 16), wrt=model, times=1)


@case(weighs=False)
def sizes_derived_from_sizes(run: Run) -> None:
    """s0 + 1, s0 // 2 and s0 * s1 as sizes of values that are recomputed."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        n = x.shape[0]
        padded = torch.cat([torch.tanh(x @ w), x.new_ones(1, 16)]).exp()
        half = padded[: (n + 1) // 2].sin() * n
        grid = torch.arange(n * 2, dtype=x.dtype).reshape(n, 2).sum(1, keepdim=True).cos()
        return (half.sum() + (padded[:-1] * grid).sin().sum()) / (n + 1)

    call = run.compile(fn, dynamic=True)
    for n in (5, 8, 13):
        run.step(call, plain(n, 16), w, wrt=[w], times=1)


@case(weighs=False)
def marked_dynamic_with_a_checkpoint(run: Run) -> None:
    """A symbolic batch through a checkpointed region."""
    from torch.utils.checkpoint import checkpoint

    model = _mlp()
    call = run.compile(lambda x: checkpoint(model, x, use_reentrant=False).exp().mean())
    for batch in (6, 11):
        x = plain(batch, 16)
        torch._dynamo.mark_dynamic(x, 0)
        run.step(call, x, wrt=model, times=1)


@case(weighs=False)
def unbacked_nonzero(run: Run) -> None:
    """Rows picked by a mask: their number is known when they are counted, not before."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        rows = (x.sum(1) > 0).nonzero().squeeze(1)
        return (h[rows].exp().sin() * x[rows]).sum() / (rows.shape[0] + 1)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        call = run.compile(fn)
        for seed in (1, 2):
            run.step(call, plain(12, 16, seed=seed), w, wrt=[w], times=1)


@case(weighs=False)
def unbacked_choice_of_computed_rows(run: Run) -> None:
    """The mask depends on a value that a plan may recompute: a flipped entry changes a size."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w).exp()
        chosen = h[h.sum(1) > 16]
        return (chosen.sin() * chosen.cos().exp()).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        call = run.compile(fn)
        for seed in (1, 2):
            run.step(call, plain(12, 16, seed=seed), w, wrt=[w], times=1)


@case(weighs=False)
def unbacked_item(run: Run) -> None:
    """A number read from a tensor scales values and is a size."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor, n: Tensor) -> Tensor:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 12)
        h = torch.tanh(x @ w).exp()
        return (h[:count].sin() * count).sum() + h.new_ones(count).exp().sum() * h.cos().mean()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        call = run.compile(fn)
        for n in (3, 7):
            run.step(call, plain(12, 16), w, torch.tensor(n), wrt=[w], times=1)


@case(weighs=False)
def float_from_a_tensor(run: Run) -> None:
    """A float read from a tensor."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        factor = scale.item()
        return (torch.tanh(x @ w) * factor).exp().mul(factor + 1).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        call = run.compile(fn)
        for factor in (0.5, 0.25):
            run.step(call, plain(12, 16), w, torch.tensor(factor), wrt=[w], times=1)


@case(weighs=False)
def float_arguments(run: Run) -> None:
    """A temperature that changes from call to call."""
    w = leaf(16, 16)
    call = run.compile(lambda x, w, t: (torch.tanh(x @ w) / t).exp().mul(t).sum())
    for t in (1.0, 0.75, 0.5):
        run.step(call, plain(12, 16), w, t, wrt=[w], times=1)


@case(weighs=False, may_refuse=True)
def jagged_nested_tensors(run: Run) -> None:
    """Sequences of different lengths in one nested tensor."""
    model = _mlp()
    parts = [plain(n, 16, seed=n) for n in (3, 5, 2)]
    call = run.compile(lambda t: model(t).sin().values().sum())
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    run.step(call, nested, wrt=model)


@case(weighs=False)
def an_empty_batch(run: Run) -> None:
    """No rows: gradients are zero, of the right size."""
    model = _mlp()
    run.step(run.compile(lambda x: model(x).exp().sum()), plain(0, 16), wrt=model)


@case(weighs=False)
def a_size_of_one_and_then_more(run: Run) -> None:
    """A batch of one is specialised; the next is not."""
    model = _mlp()
    call = run.compile(lambda x: model(x).exp().mean())
    for batch in (1, 4, 7):
        run.step(call, plain(batch, 16), wrt=model, times=1)

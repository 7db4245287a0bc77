"""A discrete choice of the forward is the backward's choice too."""

from __future__ import annotations

import torch
from torch import Tensor

from ._case import Run, case, leaf, plain


def _chosen(run: Run, choose: object) -> None:
    """bf16 inputs with ties everywhere; L = sum of what was chosen, linear in the last weight.

    Its gradient is made of what the backward holds to have been chosen. (Eager rounds otherwise
    than compiled code, so its own choices are no measure.)
    """
    x, w = plain(32, 64).bfloat16(), leaf(64, 64, seed=1)
    head = leaf(64, 8, seed=2)

    def fn(x: Tensor, w: Tensor, head: Tensor) -> Tensor:
        h = torch.tanh(x @ w.bfloat16()).exp() * 0.3
        return (choose(h).float() @ head).sum()  # type: ignore[operator]

    loss = run.step(run.compile(fn), x, w, head, wrt=[w, head])
    run.agree("linear in the head", (head.grad * head).sum(), loss)


@case(dtype=torch.float32, weighs=False, like_eager=False)
def argmax_gather(run: Run) -> None:
    """The gradient goes to the entry that was the largest in the forward."""
    _chosen(run, lambda h: h * h.gather(1, h.argmax(1, keepdim=True)).sin())


@case(dtype=torch.float32, weighs=False, like_eager=False)
def top_k_routing(run: Run) -> None:
    """The experts that ran are the experts that learn."""

    def route(h: Tensor) -> Tensor:
        weights, chosen = h.softmax(-1).topk(4)
        return torch.zeros_like(h).scatter(1, chosen, weights) * h.sin()

    _chosen(run, route)


@case(dtype=torch.float32, weighs=False, like_eager=False)
def sign_and_round(run: Run) -> None:
    """Binarised and quantised activations with straight-through gradients."""

    def quantise(h: Tensor) -> Tensor:
        return (h + (h.sign() - h).detach()) * (h * 8 + ((h * 8).round() - h * 8).detach())

    _chosen(run, quantise)


@case(dtype=torch.float32, weighs=False, like_eager=False)
def threshold_mask(run: Run) -> None:
    """A hard threshold is not continuous: the mask is the forward's."""
    _chosen(run, lambda h: torch.where(h > h.mean(), h.sin() + 5, h.cos()))


@case(dtype=torch.float32, weighs=False, like_eager=False)
def sort_indices(run: Run) -> None:
    """A permutation by value: rows go back where they came from."""

    def sort(h: Tensor) -> Tensor:
        order = h.sum(1).argsort()
        return h[order].cumsum(0).sin()

    _chosen(run, sort)


@case(dtype=torch.float32, weighs=False, like_eager=False)
def buckets(run: Run) -> None:
    """An embedding looked up by a bucket of a computed value."""
    table = torch.linspace(-1, 1, 9)

    def bucket(h: Tensor) -> Tensor:
        return h * table[torch.bucketize(h.float(), table[1:-1].contiguous())]

    _chosen(run, bucket)

"""Two training steps of a function of named tensors, against the same function run plainly.

`train` gives a function tensors by the names of its parameters, trains with what the system
compiled, and compares results, gradients, inputs and buffers with those of a plain eager run. In
the plain run a checkpointed region is called as any function is (eager's own would overwrite
buffers twice), and dropout draws as its decomposition does, so that one seed gives one sample.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ._case import Run, leaf, plain, snapshot, total

ROWS, WIDTH, ENTRIES = 32, 64, 16
LEAVES = {
    "x": (ROWS, WIDTH),
    "w": (WIDTH, WIDTH),
    "u": (WIDTH, WIDTH),
    "b": (WIDTH,),
    "table": (ENTRIES, WIDTH),
}
BUFFERS = {"y": (ROWS, WIDTH), "s": (WIDTH,), "cache": (ROWS, WIDTH)}
TAGS = (
    CheckpointPolicy.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.MUST_RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE,
)
STEPS = 2


def tensors() -> dict[str, Tensor]:
    """Fresh tensors for every name a function may read: leaves, buffers, and rows to pick."""
    named = {name: leaf(*size, seed=i) for i, (name, size) in enumerate(LEAVES.items())}
    named |= {name: plain(*size, seed=i) for i, (name, size) in enumerate(BUFFERS.items(), 10)}
    generator = torch.Generator().manual_seed(20)
    return named | {"rows": torch.randint(0, ENTRIES, (ROWS,), generator=generator)}


def checkpoint(region: Callable[..., Any], *args: Tensor, tags: Sequence[int] = ()) -> Any:
    """A checkpointed region; op by op the next of ``tags``, places in `TAGS`, if there are any."""
    if not tags:
        return torch_checkpoint(region, *args, use_reentrant=False)
    calls = [0]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        calls[0] += 1
        return TAGS[tags[calls[0] % len(tags)]]

    context = partial(create_selective_checkpoint_contexts, policy)
    return torch_checkpoint(region, *args, use_reentrant=False, context_fn=context)


def attention(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p)


def _plain_checkpoint(region: Callable[..., Any], *args: Tensor, tags: Sequence[int] = ()) -> Any:
    return region(*args)


def _plain_dropout(h: Tensor, p: float) -> Tensor:
    return (torch.rand_like(h) > p) * h * (1 / (1 - p))


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    return (_plain_dropout(weights, p) if p else weights) @ v


COMPILED = {"dropout": F.dropout, "attention": attention, "checkpoint": checkpoint}
PLAIN = {
    "dropout": _plain_dropout,
    "attention": _plain_attention,
    "checkpoint": _plain_checkpoint,
}


def train(run: Run, fn: Callable[..., Any]) -> None:
    """Train ``fn`` under the system and plainly, and compare all that there is to see.

    Args:
        run: the run; steps after the first are weighed if the function returns a loss: the
            gradients of several results are made outside of it, and no plan knows of them.
        fn: of tensors by the names of `tensors`, and of the keywords ``dropout``, ``attention`` and
            ``checkpoint``.
    """
    names = inputs_of(fn)
    compiled = run.compile(lambda *args: fn(*args, **COMPILED))
    got, right = tensors(), tensors()
    weigh = None
    for step in range(STEPS):
        result, gradients = one_step(compiled, got, names, step, weigh, run.peaks)
        expected, by = plain_step(fn, right, step)
        run.agree("result", result, expected)
        for name, gradient in gradients.items():
            run.agree(f"gradient of {name}", gradient, by[name])
        for name in names:
            run.agree(name, got[name], right[name])
        update(got, gradients)
        update(right, by)
        if isinstance(result, Tensor) and result.dim() == 0:
            weigh = run.weigh


Gradients = dict[str, "Tensor | None"]


def one_step(
    compiled: Callable[..., Any],
    given: dict[str, Tensor],
    names: Sequence[str],
    step: int,
    weigh: Callable[[Callable[[], None]], int] | None = None,
    peaks: list[int] | None = None,
) -> tuple[Any, Gradients]:
    """Forward and backward; the result and the gradients of the leaves.

    The gradients are asked for, not accumulated: autograd copies one whose strides are not its
    leaf's, after the compiled backward, and no plan knows of that.
    """
    leaves = [name for name in names if name in LEAVES]
    found: list[Any] = []

    def once() -> None:
        result = compiled(*(given[name] for name in names))
        wrt = [given[name] for name in leaves]
        gradients = torch.autograd.grad(total(result), wrt, allow_unused=True)
        found[:] = snapshot(result), dict(zip(leaves, gradients, strict=True))

    torch.manual_seed(step)
    if weigh is None or peaks is None:
        once()
    else:
        peaks.append(weigh(once))
    return found[0], found[1]


def plain_step(
    fn: Callable[..., Any], given: dict[str, Tensor], step: int
) -> tuple[Any, Gradients]:
    """One step of ``fn`` without a compiler."""
    return one_step(lambda *args: fn(*args, **PLAIN), given, inputs_of(fn), step)


def inputs_of(fn: Callable[..., Any]) -> list[str]:
    """The names of the tensors that ``fn`` takes."""
    return [name for name in inspect.signature(fn).parameters if name not in COMPILED]


def update(given: dict[str, Tensor], gradients: Gradients) -> None:
    """A small step against the gradients, as an optimizer takes it after the backward."""
    for name, gradient in gradients.items():
        if gradient is not None:
            given[name].data -= 0.01 * gradient / (gradient.abs().max() + 1)

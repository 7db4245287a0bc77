"""Effects happen once a step: custom ops, prints and collectives are not run again."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from ._case import Run, case, leaf, plain

_COLLECTIVES = ("_c10d_functional::all_reduce", "_c10d_functional::all_gather_into_tensor")
CALLS = {"opaque": 0, "logged": 0, "in_backward": 0}


@torch.library.custom_op("gcpass_cases::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    CALLS["opaque"] += 1
    return x.sin()


opaque.register_fake(torch.empty_like)
opaque.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("gcpass_cases::logged", mutates_args=())
def logged(x: Tensor) -> Tensor:
    CALLS["logged"] += 1
    return x.clone()


logged.register_fake(torch.empty_like)
logged.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("gcpass_cases::in_backward", mutates_args=())
def in_backward(x: Tensor) -> Tensor:
    CALLS["in_backward"] += 1
    return x * 2


in_backward.register_fake(torch.empty_like)


@torch.library.custom_op("gcpass_cases::count_rows", mutates_args=("counts",))
def count_rows(x: Tensor, counts: Tensor) -> Tensor:
    counts += (x > 0).sum(0)
    return x.exp()


count_rows.register_fake(lambda x, counts: torch.empty_like(x))


def _count(run: Run, name: str, fn: Any, *args: Tensor, each: int, steps: int = 2) -> None:
    call = run.compile(fn)
    run.step(call, *args, wrt=args, times=1)  # compiled, where tracing may have called it
    before = CALLS[name]
    run.step(call, *args, wrt=args, times=steps)
    run.agree(f"calls of {name}", CALLS[name] - before, each * steps)


@case()
def opaque_custom_ops_are_called_once(run: Run) -> None:
    """Three calls in the forward are three a step: nobody said the op is pure, or cheap."""
    fn = lambda x, w: opaque(torch.tanh(opaque(x @ w)) @ w).exp().mul(opaque(x)).sum()
    _count(run, "opaque", fn, leaf(32, 32), leaf(32, 32, seed=1), each=3)


@case()
def opaque_custom_ops_in_a_deep_stack(run: Run) -> None:
    """Six layers with one each: keeping their values is dearer than to call them again."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.tanh(opaque(x @ w).exp().cos()) * x.sin()
        return x.sum()

    _count(run, "opaque", fn, leaf(64, 32), leaf(32, 32, seed=1), each=6)


@case()
def an_op_that_logs_is_called_once(run: Run) -> None:
    """A custom op registered as having an effect keeps its place, once a step."""
    fn = lambda x, w: logged(torch.tanh(logged(x @ w).exp()).sin() @ w).exp().sum()
    _count(run, "logged", fn, leaf(32, 32), leaf(32, 32, seed=1), each=2)


@case()
def an_effect_only_in_the_backward(run: Run) -> None:
    """A backward that calls an opaque op calls it once."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return in_backward(grads[0])

    fn = lambda x, w: Doubled.apply(torch.tanh(x @ w)).exp().sum()
    _count(run, "in_backward", fn, leaf(32, 32), leaf(32, 32, seed=1), each=1)


@case()
def a_custom_op_that_overwrites_a_buffer(run: Run) -> None:
    """The mutated argument is counted up once a step, and its result is not made again."""
    counts, x, w = torch.zeros(32, dtype=torch.long), leaf(32, 32), leaf(32, 32, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        return (count_rows(h.detach(), counts) * h.sin()).exp().sum()

    run.step(run.compile(fn), x, w, wrt=[x, w], times=2)
    run.see("counts", counts)


@case()
def an_opaque_op_in_a_checkpointed_region(run: Run) -> None:
    """The user's region says to recompute: the op may run twice, and gradients are right."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        body = lambda x: torch.tanh(opaque(x @ w)).exp()
        return checkpoint(body, x, use_reentrant=False).sin().sum()

    run.step(run.compile(fn), plain(32, 32), w := leaf(32, 32), wrt=[w])


def _group() -> None:
    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group("gloo", rank=0, world_size=1, store=store)


def _count_collectives(run: Run, fn: Any, *args: Tensor, each: int) -> None:
    """Counts what one step issues, as the profiler sees it."""
    call = run.compile(fn)
    run.step(call, *args, wrt=args, times=1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call(*args).backward()
    issued = [e.name for e in profiler.events() if e.name in _COLLECTIVES]
    run.agree("collectives", len(issued), each)


@case(weighs=False)
def all_reduce_is_not_issued_again(run: Run) -> None:
    """Two reductions in the forward; a rank that issues a third waits for ever."""
    _group()
    group = dist.group.WORLD

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = collectives.all_reduce(torch.tanh(x @ w).detach(), "sum", group)
        h = collectives.all_reduce((h * x).sin().detach(), "sum", group) * x
        return (h.exp() @ w).sin().sum()

    _count_collectives(run, fn, leaf(32, 32), leaf(32, 32, seed=1), each=2)


@case(weighs=False)
def all_gather_in_a_checkpointed_region(run: Run) -> None:
    """A gathered parameter inside a checkpoint: gathered once, as on every other rank."""
    _group()
    group = dist.group.WORLD

    def fn(x: Tensor, w: Tensor) -> Tensor:
        def body(x: Tensor) -> Tensor:
            whole = collectives.all_gather_tensor(w.detach(), 0, group)
            return torch.tanh(x @ whole).exp() * (x @ w).cos()

        return checkpoint(body, x, use_reentrant=False).sin().sum()

    _count_collectives(run, fn, leaf(32, 32), leaf(32, 32, seed=1), each=1)


@case(weighs=False)
def a_collective_that_must_be_recomputed(run: Run) -> None:
    """MUST_RECOMPUTE on everything in the region, a collective included: still issued once."""
    _group()
    group = dist.group.WORLD

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_RECOMPUTE

    context = partial(create_selective_checkpoint_contexts, policy)

    def body(x: Tensor, w: Tensor) -> Tensor:
        total = collectives.all_reduce(x.sin().detach(), "sum", group)
        return torch.tanh(total @ w).exp()

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = checkpoint(body, x, w, use_reentrant=False, context_fn=context)
        return (h.sin() * x).sum()

    _count_collectives(run, fn, leaf(32, 32), leaf(32, 32, seed=1), each=1)

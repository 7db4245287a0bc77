"""What the user said of checkpointing: honoured at every budget, contradictions included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import gcpass

from ._case import Run, case, leaf, plain

aten = torch.ops.aten
Choice = Callable[[Any], CheckpointPolicy]


def _selective(block: Any, choose: Choice) -> Any:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return choose(op)

    context = partial(create_selective_checkpoint_contexts, policy)

    def call(*args: Tensor) -> Tensor:
        return checkpoint(block, *args, use_reentrant=False, context_fn=context)

    return call


def _blocks() -> nn.Sequential:
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    return nn.Sequential(*(block() for _ in range(3)))


def _train(run: Run, choose: Choice) -> None:
    blocks = _blocks()
    calls = [_selective(block, choose) for block in blocks]

    def fn(x: Tensor) -> Tensor:
        for call in calls:
            x = x + call(x)
        return x.square().sum()

    run.step(run.compile(fn), plain(32, 32), wrt=blocks, times=2)


def _is_product(op: Any) -> bool:
    return op in (aten.mm.default, aten.addmm.default)


@case()
def must_save_products(run: Run) -> None:
    """Products are kept whatever the budget, the rest is recomputed."""
    must = CheckpointPolicy
    _train(run, lambda op: must.MUST_SAVE if _is_product(op) else must.MUST_RECOMPUTE)
    run.plan_keeps(lambda target: "mm" in target, every=True)


@case()
def must_recompute_everything(run: Run) -> None:
    """Only what crosses the regions is kept."""
    _train(run, lambda op: CheckpointPolicy.MUST_RECOMPUTE)
    run.plan_keeps(lambda target: "gelu" in target or "layer_norm" in target, every=False)


@case()
def prefer_save_products(run: Run) -> None:
    """A preference: kept where the budget allows."""
    prefer = CheckpointPolicy
    _train(run, lambda op: prefer.PREFER_SAVE if _is_product(op) else prefer.PREFER_RECOMPUTE)


@case()
def prefer_recompute_everything(run: Run) -> None:
    """What plain `checkpoint` says."""
    _train(run, lambda op: CheckpointPolicy.PREFER_RECOMPUTE)


@case()
def save_a_multi_output_op(run: Run) -> None:
    """MUST_SAVE on layer norm, whose value is a tuple: its items are kept."""
    must = CheckpointPolicy
    norm = aten.native_layer_norm.default
    _train(run, lambda op: must.MUST_SAVE if op is norm else must.MUST_RECOMPUTE)


@case()
def recompute_a_multi_output_op_and_save_the_rest(run: Run) -> None:
    """The contrary: the norm may not be kept, all around it must."""
    must = CheckpointPolicy
    norm = aten.native_layer_norm.default
    _train(run, lambda op: must.MUST_RECOMPUTE if op is norm else must.MUST_SAVE)


@case()
def must_save_views_of_products(run: Run) -> None:
    """MUST_SAVE on the views alone: each holds the storage of a product, which is what is kept."""
    must, w = CheckpointPolicy, leaf(32, 32)

    def body(x: Tensor, w: Tensor) -> Tensor:
        h = (x @ w).sin()
        return (h @ w).view(-1, 4).exp().view(-1, 32) @ w

    choose = lambda op: must.MUST_SAVE if op is aten.view.default else must.PREFER_RECOMPUTE
    call = _selective(body, choose)
    run.step(run.compile(lambda x, w: call(x, w).cos().sum()), plain(32, 32), w, wrt=[w])
    run.plan_keeps(lambda target: target == "aten.exp", every=True)


@case()
def a_view_passes_between_regions(run: Run) -> None:
    """What a region hands on is kept, and nothing else, though it is a view of a product."""
    must, w = CheckpointPolicy, leaf(32, 32)
    body = lambda x, w: (x.view(32, 32).sin() @ w).view(8, 4, 32)
    call = _selective(body, lambda op: must.MUST_RECOMPUTE)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = call(x, w)
        return x.cos().sum()

    run.step(run.compile(fn), plain(32, 32), w, wrt=[w])
    run.plan_keeps(lambda target: target == "aten.mm", every=True)


@case(may_refuse=True)
def tags_of_views_contradict_their_base(run: Run) -> None:
    """A product that may not be kept, views of it that must: one storage, two tags.

    Either partition is right; an error must name the line.
    """
    must, w = CheckpointPolicy, leaf(32, 32)
    views = (aten.t.default, aten.view.default, aten.transpose.int, aten.slice.Tensor)

    def body(x: Tensor, w: Tensor) -> Tensor:
        h = (x @ w).t()[4:].transpose(0, 1).sin()
        return h.reshape(-1, 4).exp()

    choose = lambda op: must.MUST_SAVE if op in views else must.MUST_RECOMPUTE
    call = _selective(body, choose)
    run.step(run.compile(lambda x, w: call(x, w).cos().sum()), plain(32, 32), w, wrt=[w])


@case()
def split_with_contradicting_items(run: Run) -> None:
    """chunk and topk inside a region, under alternating tags."""
    count = [0]
    w = leaf(32, 32)

    def choose(op: Any) -> CheckpointPolicy:
        count[0] += 1
        must = CheckpointPolicy
        return must.MUST_SAVE if count[0] % 2 else must.MUST_RECOMPUTE

    def body(x: Tensor, w: Tensor) -> Tensor:
        a, b = (x @ w).sin().chunk(2, -1)
        values, _ = (a * b.exp()).topk(4, -1)
        return torch.cat([values.sin(), b.cos()], -1).exp()

    call = _selective(body, choose)
    run.step(run.compile(lambda x, w: call(x, w).sum()), plain(32, 32), w, wrt=[w])


@case()
def nested_checkpoints(run: Run) -> None:
    """A checkpoint of checkpoints: recomputed once as compiled, gradients eager's."""
    blocks = _blocks()

    def fn(x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            for block in blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return x

        return checkpoint(inner, x, use_reentrant=False).square().sum()

    run.step(run.compile(fn), plain(32, 32), wrt=blocks)


@case()
def consecutive_regions(run: Run) -> None:
    """Two regions with nothing between: what passes from one to the other is kept."""
    w, v = leaf(32, 32), leaf(32, 32, seed=1)

    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        for m in (w, v, w, v):
            x = checkpoint(lambda x, m: torch.tanh(x @ m).exp().sin(), x, m, use_reentrant=False)
        return x.sum()

    run.step(run.compile(fn), plain(32, 32), w, v, wrt=[w, v])


@case()
def checkpoint_of_part_of_a_graph(run: Run) -> None:
    """A region in the middle, other ops free: the region's own tags and nobody else's."""
    w, v = leaf(32, 32), leaf(32, 32, seed=1)

    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        h = torch.tanh(x @ w).exp()
        h = checkpoint(lambda h: torch.tanh(h @ v).sin() * h, h, use_reentrant=False)
        return torch.tanh(h @ w).exp().sum()

    run.step(run.compile(fn), plain(32, 32), w, v, wrt=[w, v])


@case()
def regions_with_several_results(run: Run) -> None:
    """A region that returns a tuple, one of whose items only the loss reads."""
    w = leaf(32, 32)

    def body(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x @ w)
        return h.sin(), h.square().mean()

    def fn(x: Tensor, w: Tensor) -> Tensor:
        total = x.new_zeros(())
        for _ in range(3):
            x, extra = checkpoint(body, x, w, use_reentrant=False)
            total = total + extra
        return x.sum() + total

    run.step(run.compile(fn), plain(32, 32), w, wrt=[w])


@case()
def torchs_own_region_budget(run: Run) -> None:
    """`region_activation_memory_budget`: gradients as without it."""
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    w = leaf(32, 32)

    def body(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(x @ w).exp().sin()
        return x.sum()

    def fn(x: Tensor, w: Tensor) -> Tensor:
        if region is None or not torch.compiler.is_compiling():
            return body(x, w)
        with region(0.5):
            return body(x, w)

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])


@case()
def torchs_own_region_of_a_part(run: Run) -> None:
    """The same around a part of the graph, which torch's own partitioner refuses."""
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    w = leaf(32, 32)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w).exp()
        if region is None or not torch.compiler.is_compiling():
            h = _three_layers(h, w)
        else:
            with region(0.0):
                h = _three_layers(h, w)
        return (h @ w).square().sum()

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])


@case()
def offloading_tags(run: Run) -> None:
    """MUST_CPU_OFFLOAD is kept where it is: it must not run again."""
    must = CheckpointPolicy
    if not hasattr(must, "MUST_CPU_OFFLOAD"):
        return
    _train(run, lambda op: must.MUST_CPU_OFFLOAD if _is_product(op) else must.MUST_RECOMPUTE)
    run.plan_keeps(lambda target: "mm" in target, every=True)


def _three_layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.sigmoid(x @ w).sin()
    return x


@case()
def a_region_with_a_budget(run: Run) -> None:
    """`gcpass.region` around a part of the graph, entered three times: gradients as without it."""
    w = leaf(32, 32)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        x = torch.tanh(x @ w)
        for _ in range(3):
            with gcpass.region(memory_budget=0.5):
                x = _three_layers(x, w)
        return (x @ w).square().sum()

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])


@case()
def a_region_that_is_saved(run: Run) -> None:
    """Nothing in it runs twice, at any budget; what is around it is the planner's."""
    w = leaf(32, 32)

    @gcpass.region(policy="save")
    def inside(x: Tensor, w: Tensor) -> Tensor:
        return _three_layers(x, w)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (inside(torch.tanh(x @ w).exp(), w) @ w).exp().sum()

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])
    run.plan_keeps(lambda target: "sigmoid" in target, every=True)


@case()
def a_region_inside_a_region(run: Run) -> None:
    """The innermost decides: the outer recomputes, the inner saves."""
    w = leaf(32, 32)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        x = torch.tanh(x @ w)
        with gcpass.region(policy="recompute"):
            x = (x @ w).exp().cos().neg()
            with gcpass.region(policy="save"):
                x = torch.sigmoid(x @ w)
            x = (x @ w).cos().exp()
            x = x.sin() * 2
        return (x @ w).square().sum()

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])
    run.plan_keeps(lambda target: "sigmoid" in target, every=True)
    run.plan_keeps(lambda target: target in ("aten.exp", "aten.cos"), every=False)


@case()
def a_region_around_checkpoints(run: Run) -> None:
    """A region that saves overrules what plain checkpointing in it would rather recompute."""
    w = leaf(32, 32)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        x = torch.tanh(x @ w)
        with gcpass.region(policy="save"):
            x = checkpoint(_three_layers, x, w, use_reentrant=False)
        return (x @ w).square().sum()

    run.step(run.compile(fn), plain(64, 32), w, wrt=[w])
    run.plan_keeps(lambda target: "sigmoid" in target, every=True)


@case(like_eager=False)
def dropout_in_a_region_that_is_recomputed(run: Run) -> None:
    """The mask is the forward's all the same: L is of degree one in x, so <dL/dx, x> = L."""
    w, x = leaf(32, 32), leaf(64, 32, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        with gcpass.region(policy="recompute"):
            for _ in range(3):
                x = F.dropout(x @ w, 0.5).relu()
        return x.sum()

    loss = run.step(run.compile(fn), x, w, wrt=[x, w], times=1)
    assert x.grad is not None
    run.agree("<dL/dx, x>", (x.grad * x).sum(), loss)


@case()
def statistics_in_a_region_that_is_recomputed(run: Run) -> None:
    """Batch norm's statistics move once a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 16))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        @gcpass.region(policy="recompute")
        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).square().sum()

    net = Net()
    run.step(run.compile(net), plain(64, 16), wrt=net)

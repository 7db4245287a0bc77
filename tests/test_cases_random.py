"""Variants of cases drawn at random: interleaved reads and writes, and tags in any combination."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from _oracle import FLOOR, Verdict, gcpass, judge
from cases import Case, Run
from cases._case import leaf, plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

pytestmark = pytest.mark.filterwarnings("ignore:gcpass. memory_budget")
few = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
budgets = st.sampled_from([None, 0.7, 0.5, FLOOR])


def _right(body: Any, budget: float | str | None) -> None:
    case = Case("random", "random", body, True, torch.float64, False, False, "")
    judged = judge(case, gcpass(budget))
    assert judged.verdict is Verdict.RIGHT, judged.why


# -- reads and writes of a buffer ----------------------------------------------------------------

WIDTH = 8
VIEWS = {
    "whole": lambda s: s,
    "row": lambda s: s[1],
    "columns": lambda s: s[:, 2:6].repeat(1, 2),
    "transposed": lambda s: s.t(),
    "flat": lambda s: s.view(-1)[:WIDTH],
}
READS = {
    "multiply": lambda x, v: torch.tanh(x * v.exp()),
    "add": lambda x, v: (x + v.sin()).cos(),
    "product": lambda x, v: torch.tanh(x @ torch.diag_embed(v.reshape(-1)[:WIDTH]) / 2),
    "divide": lambda x, v: (x / (v.square() + 1)).sin(),
}
WRITES = {
    "add": lambda x, v: v.add_(0.5),
    "scale": lambda x, v: v.mul_(0.5),
    "average": lambda x, v: v.lerp_(x.detach().mean() * torch.ones_like(v), 0.3),
    "zero": lambda x, v: v.zero_(),
    "copy": lambda x, v: v.copy_(v.sin()),
}
WRITTEN = {"whole": lambda s: s, "row": lambda s: s[1], "columns": lambda s: s[:, 2:6]}
reads = st.tuples(st.just("read"), st.sampled_from(list(VIEWS)), st.sampled_from(list(READS)))
writes = st.tuples(st.just("write"), st.sampled_from(list(WRITTEN)), st.sampled_from(list(WRITES)))


@few
@given(st.lists(st.one_of(reads, reads, writes), min_size=3, max_size=9), budgets)
def test_reads_and_writes_of_a_buffer_in_any_order(
    program: list[tuple[str, str, str]], budget: float | str | None
) -> None:
    """Every read sees the writes before it and none after it, in the backward too."""

    def body(run: Run) -> None:
        x, w, s = leaf(WIDTH, WIDTH), leaf(WIDTH, WIDTH, seed=1), plain(WIDTH, WIDTH)

        def fn(x: Tensor, w: Tensor) -> Tensor:
            x = x @ w
            for what, view, how in program:
                if what == "read":
                    x = READS[how](x, VIEWS[view](s))
                else:
                    with torch.no_grad():
                        WRITES[how](x, WRITTEN[view](s))
            return x.exp().sum()

        run.step(run.compile(fn), x, w, wrt=[x, w])
        run.see("buffer", s)

    _right(body, budget)


# -- tags ----------------------------------------------------------------------------------------

POLICIES = [
    CheckpointPolicy.MUST_SAVE,
    CheckpointPolicy.PREFER_SAVE,
    CheckpointPolicy.MUST_RECOMPUTE,
    CheckpointPolicy.PREFER_RECOMPUTE,
]


@few
@given(st.lists(st.sampled_from(POLICIES), min_size=1, max_size=7), budgets, st.booleans())
def test_tags_in_any_combination(
    tags: list[CheckpointPolicy], budget: float | str | None, nested: bool
) -> None:
    """Op by op the next tag of a cycle: views, tuples and regions get contradicting ones."""

    def body(run: Run) -> None:
        calls = [0]

        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            calls[0] += 1
            return tags[calls[0] % len(tags)]

        context = partial(create_selective_checkpoint_contexts, policy)
        w, v = leaf(16, 16), leaf(16, 16, seed=1)

        def block(x: Tensor, w: Tensor) -> Tensor:
            a, b = torch.nn.functional.layer_norm(x @ w, (16,)).chunk(2, -1)
            h = torch.cat([a.sin() * b, b.t().exp().t()], -1)
            top, _ = h.topk(4, -1)
            return torch.tanh(h + top.sum(-1, keepdim=True))

        def region(x: Tensor) -> Tensor:
            x = checkpoint(block, x, w, use_reentrant=False, context_fn=context)
            return checkpoint(block, x, v, use_reentrant=False, context_fn=context)

        def fn(x: Tensor) -> Tensor:
            x = checkpoint(region, x, use_reentrant=False) if nested else region(x)
            return (x @ w).exp().sum()

        run.step(run.compile(fn), plain(16, 16), wrt=[w, v])

    _right(body, budget)


# -- random numbers --------------------------------------------------------------------------------

NOISES = {
    "dropout": lambda h: torch.nn.functional.dropout(h, 0.3),
    "uniform": lambda h: h * torch.rand_like(h),
    "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
    "normal": lambda h: h * torch.randn(16, 16),
    "rows": lambda h: h[torch.randint(0, 16, (16,))],
}


@few
@given(st.lists(st.sampled_from(list(NOISES)), min_size=1, max_size=4), budgets, st.booleans())
def test_random_ops_in_any_order(
    noises: list[str], budget: float | str | None, checkpointed: bool
) -> None:
    """Positively homogeneous in x, so <dL/dx, x> = L if one sample served both passes.

    The sample is eager's, too, but for dropout's, which is drawn as uniform numbers.
    """

    def body(run: Run) -> None:
        x = leaf(16, 16)

        def noisy(h: Tensor) -> Tensor:
            for name in noises:
                h = NOISES[name](h.relu() - 0.2 * h)
            return h

        def fn(x: Tensor) -> Tensor:
            h = checkpoint(noisy, x, use_reentrant=False) if checkpointed else noisy(x)
            return noisy(h.abs()).sum()

        loss = run.step(run.compile(fn), x, wrt=[x], times=1)
        run.agree("<dL/dx, x> = L", (x.grad * x).sum(), loss)
        if "dropout" in noises:
            run.seen.clear()

    _right(body, budget)


@pytest.mark.parametrize("budget", [None, FLOOR], ids=str)
def test_nothing_is_drawn_for_nobody(budget: float | str | None) -> None:
    """What the backward draws without a reader, the second step's numbers tell.

    Noise that is added has no place in the gradient. Under ``fallback_random`` torch leaves its
    draw in the backward, too.
    """

    def body(run: Run) -> None:
        x, w = plain(16, 16), leaf(16, 16, seed=3)
        fn = lambda x, w: torch.tanh(x @ w + torch.randn(16, 16)).exp().sum()
        run.step(run.compile(fn), x, w, wrt=[w])

    with inductor_config.patch(fallback_random=True):
        _right(body, budget)


@pytest.mark.inductor
@pytest.mark.parametrize("budget", [None, 0.7, 0.5, FLOOR], ids=str)
def test_inductor_draws_what_eager_does_if_asked_to(budget: float | str | None) -> None:
    """With ``fallback_random`` each random op runs once, in order: another run or another order
    would give other numbers than eager's. (Bernoulli's are Inductor's own even so.)"""

    def body(run: Run) -> None:
        x, w = plain(16, 16), leaf(16, 16, seed=3)
        buffer = torch.zeros(16, 16)

        def region(h: Tensor) -> Tensor:
            return torch.nn.functional.dropout(h.cos(), 0.3).sin().exp()

        def fn(x: Tensor, w: Tensor) -> Tensor:
            h = torch.tanh(torch.nn.functional.dropout(x @ w, 0.3))
            h = (h + torch.randn(16, 16)).sin() * torch.rand_like(h)
            h = checkpoint(region, h @ w, use_reentrant=False)
            h = h.cos() * buffer.normal_()
            h = h[torch.multinomial(h.detach().abs().sum(1), 16, replacement=True)]
            return (h.sin() @ w * torch.randperm(16)).sum()

        run.step(run.compile(fn), x, w, wrt=[w])

    case = Case("fallback", "random", body, True, torch.float64, False, False, "")
    with inductor_config.patch(fallback_random=True):
        judged = judge(case, gcpass(budget, "inductor"))
    assert judged.verdict is Verdict.RIGHT, judged.why

"""Ops with bodies: run whole, in the forward, and right."""

from __future__ import annotations

import torch
import torch._dynamo
from torch import Tensor

from ._case import Run, case, leaf, plain

MAY = {"may_refuse": True, "weighs": False}  # where torch itself cannot trace


@case(**MAY)
def cond(run: Run) -> None:
    """Either branch, by data."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w).exp()
        h = torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos() * h, (h,))
        return (h @ w).exp().mean()

    call = run.compile(fn)
    for sign in (1.0, -1.0):
        run.step(call, plain(16, 16).abs() * sign, w, wrt=[w])


@case(**MAY)
def while_loop(run: Run) -> None:
    """A loop whose length depends on data, without gradient, before what has one."""
    from torch._higher_order_ops import while_loop as loop

    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        _, start = loop(
            lambda i, h: i < 4, lambda i, h: (i + 1, torch.tanh(h) + 1), (torch.tensor(0), x)
        )
        return (torch.tanh(start @ w).exp() @ w).sin().sum()

    run.step(run.compile(fn), plain(16, 16), w, wrt=[w])


@case(weighs=False, torch_fault="torch takes the carry of a scan for an alias of its input")
def scan(run: Run) -> None:
    """A recurrence over 6 steps."""
    from torch._higher_order_ops import scan as scan_op

    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        def body(h: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = torch.tanh(h @ w + row)
            return new, new.sin()

        last, rows = scan_op(body, x.new_zeros(16), x, dim=0)
        return (rows.exp() @ w).sum() + last.sum()

    run.step(run.compile(fn), plain(6, 16), w, wrt=[w])


@case(**MAY)
def map_over_rows(run: Run) -> None:
    """The same body for every row."""
    from torch._higher_order_ops import map as map_op

    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        rows = map_op(lambda row, w: torch.tanh(row @ w).exp(), x, w)
        return (rows.sin() @ w).sum()

    run.step(run.compile(fn), plain(6, 16), w, wrt=[w])


@case(
    dtype=torch.float32,
    weighs=False,
    torch_fault="torch has no backward of flex_attention on the CPU",
)
def flex_attention(run: Run) -> None:
    """Attention with a score modification."""
    from torch.nn.attention.flex_attention import flex_attention as attention

    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        q = (x @ w).view(1, 2, 16, 16)
        return attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j)).exp().sum()

    run.step(run.compile(fn), plain(32, 16) / 4, w, wrt=[w])


@case(**MAY)
def nested_compile_region(run: Run) -> None:
    """A block marked to be compiled once and called four times."""
    w = [leaf(16, 16, seed=i) for i in range(4)]

    @torch.compiler.nested_compile_region
    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).exp().sin()

    def fn(x: Tensor, *w: Tensor) -> Tensor:
        for v in w:
            x = block(x, v)
        return x.sum()

    run.step(run.compile(fn), plain(32, 16), *w, wrt=w)


@case(**MAY)
def associative_scan(run: Run) -> None:
    """Prefix products, without gradient, that scale what has one."""
    from torch._higher_order_ops.associative_scan import associative_scan as prefix

    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        scale = prefix(lambda a, b: a * b, x.sigmoid(), dim=0, combine_mode="generic")
        return (torch.tanh(x @ w) * scale).exp().sum()

    run.step(run.compile(fn), plain(8, 16), w, wrt=[w])


@case(weighs=False)
def vmap(run: Run) -> None:
    """Per-row functions by `torch.vmap`: traced away."""
    w = leaf(16, 16)
    fn = lambda x, w: torch.vmap(lambda r: torch.tanh(r @ w).exp().sin())(x).sum()
    run.step(run.compile(fn), plain(8, 16), w, wrt=[w])

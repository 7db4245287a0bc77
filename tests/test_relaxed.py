"""Inductor may hold a free block of memory for later only where the budget is kept all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gcpass.fx import _compat_inductor, _count, _verify
from gcpass.fx._backend import compile_graph
from gcpass.fx._compat import inductor_config
from gcpass.fx._options import read_options

LAYERS, ROWS, WIDTH = 8, 256, 16
HOLDING = 2**30  # bytes: more than any budget here


class Compiled(BaseException):
    """Ends a compilation where Inductor's own would begin."""


def layers(x: Tensor, weights: Tensor) -> Tensor:
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x.sum()


def told_when_compiled(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Tensor], given: Sequence[Tensor], budget: Any
) -> bool:
    """Whether Inductor may hold blocks where its own compilation of a planned graph begins."""
    told: list[bool] = []
    compile_inner = _compat_inductor._compile_inner

    def inner(*given: Any, **named: Any) -> Any:
        if inductor_config.force_disable_caches:  # code is written to be counted
            return compile_inner(*given, **named)
        told.append(inductor_config.allow_buffer_reuse)
        raise Compiled

    monkeypatch.setattr(_compat_inductor, "_compile_inner", inner)
    options = read_options({"memory_budget": budget, "strict": True})
    torch._dynamo.reset()
    compiled = torch.compile(
        fn, backend=lambda gm, inputs: compile_graph(gm, inputs, options), dynamic=False
    )
    with pytest.raises(Compiled):
        compiled(*given)
    return told[0]


def counted_and_told(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> tuple[list[tuple[bool, int]], bool]:
    """Of the code counted for a budget: whether blocks may be held in it, and how many it takes;
    and whether Inductor may hold some in what it compiles.

    Args:
        monkeypatch: the fixture.
        held: bytes that are counted beside the rest where blocks are held.
    """
    counts: list[tuple[bool, int]] = []
    write = _count._written

    def written(module: Any, *given: Any, relaxed: bool, **named: Any) -> Any:
        code = write(module, *given, relaxed=relaxed, **named)
        assert code is not None
        counts.append((relaxed, code.source.count("= empty_strided_cpu(")))
        return code

    def count(*given: Any, relaxed: bool) -> Any:
        use, moments = real_count(*given, relaxed=relaxed)
        more = held if relaxed else 0
        return replace(use, backward_nbytes=use.backward_nbytes + more), moments

    real_count = _verify.count
    monkeypatch.setattr(_count, "_written", written)
    monkeypatch.setattr(_verify, "count", count)
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    weights = torch.randn(LAYERS, WIDTH, WIDTH, requires_grad=True)
    told = told_when_compiled(monkeypatch, layers, (x, weights), 0.7)
    return counts, told


def test_blocks_are_held_where_the_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, may_hold = counted_and_told(monkeypatch, held=0)
    (*_, given_back), (*_, held) = (
        [blocks for relaxed, blocks in counts if relaxed is allowed] for allowed in (False, True)
    )
    assert held < given_back
    assert may_hold


def test_blocks_are_given_back_where_holding_them_would_break_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts, may_hold = counted_and_told(monkeypatch, held=HOLDING)
    assert [relaxed for relaxed, _ in counts][-2:] == [True, True]
    assert not may_hold


def test_every_loop_is_a_kernel_where_memory_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {True: 0, False: 0}
    write = _count._written

    def written(*given: Any, relaxed: bool, **named: Any) -> Any:
        for allowed in kernels:
            code = write(*given, relaxed=allowed, **named)
            assert code is not None
            kernels[allowed] += code.source.count("cpp_fused")
        return write(*given, relaxed=relaxed, **named)

    def sums(x: Tensor, weight: Tensor) -> Tensor:  # of rows and of columns: two loops
        x = torch.tanh(x @ weight)
        return x.sum(0).cos().sum() + x.sum(1).sin().sum()

    monkeypatch.setattr(_count, "_written", written)
    given = [torch.randn(*s, requires_grad=True) for s in ((ROWS, WIDTH), (WIDTH, WIDTH))]
    told_when_compiled(monkeypatch, sums, given, "1GiB")
    assert kernels[False] > kernels[True] > 0

"""Inductor may hold a free block of memory for later only where the budget is kept all the same."""

from __future__ import annotations

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
    told: list[bool] = []
    write, compile_inner = _count._written, _compat_inductor._compile_inner

    def written(module: Any, *given: Any, relaxed: bool, **named: Any) -> Any:
        code = write(module, *given, relaxed=relaxed, **named)
        assert code is not None
        counts.append((relaxed, code.source.count("= empty_strided_cpu(")))
        return code

    def count(*given: Any, relaxed: bool) -> Any:
        use, moments = real_count(*given, relaxed=relaxed)
        more = held if relaxed else 0
        return replace(use, backward_nbytes=use.backward_nbytes + more), moments

    def inner(*given: Any, **named: Any) -> Any:
        if inductor_config.force_disable_caches:  # code is written to be counted
            return compile_inner(*given, **named)
        told.append(inductor_config.allow_buffer_reuse)
        raise Compiled

    real_count = _verify.count
    monkeypatch.setattr(_count, "_written", written)
    monkeypatch.setattr(_verify, "count", count)
    monkeypatch.setattr(_compat_inductor, "_compile_inner", inner)
    options = read_options({"memory_budget": 0.7, "strict": True})
    torch._dynamo.reset()
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    weights = torch.randn(LAYERS, WIDTH, WIDTH, requires_grad=True)
    compiled = torch.compile(
        layers, backend=lambda gm, inputs: compile_graph(gm, inputs, options), dynamic=False
    )
    with pytest.raises(Compiled):
        compiled(x, weights)
    return counts, told[0]


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

"""Planning takes about as much work as there are ops, and gives the same plan in every process."""

from __future__ import annotations

import cProfile
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_problems import build_problem
from torch import Tensor

from gcpass._budget import Budget
from gcpass._evaluate import Evaluator
from gcpass._planning import Request, make_plan
from gcpass._problem import Problem
from gcpass.fx._capture import capture
from gcpass.fx._partitioner import analyze_graph
from gcpass.fx._prices import find_prices


def _pairwise(n: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Every pair of n inputs is multiplied, and all products are added."""
    xs = [torch.ones(4, requires_grad=True) for _ in range(n)]

    def fn(*xs: Tensor) -> Tensor:
        total = torch.zeros(4)
        for i, x in enumerate(xs):
            for y in xs[:i]:
                total = total + torch.sin(x * y)
        return total.sum()

    return fn, xs


def _many_users(n: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """One value read by n ops."""

    def fn(x: Tensor) -> Tensor:
        h = x.exp()
        return torch.stack([torch.sin(h * i) for i in range(n)]).sum()

    return fn, [torch.ones(16, requires_grad=True)]


def _recurrent(n: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A recurrent network unrolled over n steps."""
    w, u = (torch.ones(8, 8, requires_grad=True) for _ in range(2))

    def fn(w: Tensor, u: Tensor, x: Tensor) -> Tensor:
        h = torch.zeros(2, 8)
        for t in range(n):
            h = torch.tanh(h @ w + x[t] @ u)
        return h.sum()

    return fn, [w, u, torch.ones(n, 2, 8)]


def _chain(n: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """n elementwise ops one after the other."""

    def fn(x: Tensor) -> Tensor:
        for _ in range(n):
            x = torch.sin(x)
        return x.sum()

    return fn, [torch.ones(16, requires_grad=True)]


def _work(program: tuple[Callable[..., Tensor], list[Tensor]]) -> tuple[int, int]:
    """How many ops the joint graph has, and how many calls Python makes to plan it."""
    torch._dynamo.reset()
    fn, args = program
    captured = capture(fn, args, None, "eager")
    prices = find_prices("reference", torch.device("cpu"))
    request = Request(budget=Budget(fraction=0.5), on_infeasible="best", solver="segments")
    profiler = cProfile.Profile()
    profiler.enable()
    analysis = analyze_graph(captured.joint, captured.num_fwd_outputs, prices, "eager")
    make_plan(Evaluator(analysis.problem), request, warn=False)
    profiler.disable()
    stats: Any = profiler.getstats()
    return len(analysis.problem.ops), sum(entry.callcount for entry in stats)


@pytest.mark.parametrize(
    ("program", "small", "large"),
    [(_pairwise, 16, 32), (_many_users, 75, 300), (_recurrent, 30, 120), (_chain, 150, 600)],
)
def test_work_grows_with_the_number_of_ops(program: Any, small: int, large: int) -> None:
    """Calls of Python a plan takes, an op: no more than twice as many in a graph four times as
    large. (The logarithms of sorting and searching count for some of that.)"""
    (ops, calls), (more_ops, more_calls) = _work(program(small)), _work(program(large))
    assert more_ops > 3 * ops
    assert more_calls / more_ops < 2 * calls / ops


# -- ten thousand ops, without a graph of torch's --------------------------------------------------


def _alike_layers(ops: int) -> Problem:
    """Layers of eight values, the last of which adds what the layer read."""
    reads: list[list[int]] = []
    for _ in range(ops // 16):
        h = len(reads)
        inside = [[h], [h + 1], [h + 2], [h + 1], [h + 4, h + 3], [h + 5], [h + 6], [h + 7, h]]
        reads += inside
    layers = len(reads) // 8
    return build_problem(
        reads, [8, 16, 16, 4, 8, 32, 32, 8] * layers, [5, 50, 4, 50, 3, 90, 4, 2] * layers
    )


def _deep(ops: int) -> Problem:
    """One op after the other."""
    count = ops // 2
    return build_problem([[i] for i in range(count)], [20] * count, [10] * count)


def _skipping(ops: int) -> Problem:
    """A chain down and a chain up, each of whose values also reads the one on its level."""
    depth = ops // 4
    reads = [[i] for i in range(depth)] + [sorted({depth + i, depth - i}) for i in range(depth)]
    return build_problem(reads, [10] * len(reads), [7] * len(reads))


def _steps_through_time(ops: int) -> Problem:
    """h @ w + x @ u and its tanh, again and again."""
    reads: list[list[int]] = []
    for _ in range(ops // 8):
        h = len(reads)
        reads += [[h], [0], [h + 1, h + 2], [h + 3]]
    return build_problem(reads, [16] * len(reads), [50, 50, 2, 5] * (len(reads) // 4))


@pytest.mark.parametrize("shape", [_alike_layers, _deep, _skipping, _steps_through_time])
def test_four_times_as_many_ops_take_little_more_each(
    shape: Callable[[int], Problem],
) -> None:
    def calls_per_op(ops: int) -> float:
        problem, profiler = shape(ops), cProfile.Profile()
        request = Request(budget=Budget(fraction=0.7), on_infeasible="best")
        profiler.enable()
        make_plan(Evaluator(problem), request, warn=False)
        profiler.disable()
        stats: Any = profiler.getstats()
        return sum(entry.callcount for entry in stats) / len(problem.ops)

    assert calls_per_op(2_000) < 1.5 * calls_per_op(500)


# -- the same plan in every process ----------------------------------------------------------------

PROGRAM = """
import sys, torch, gcpass
sys.path.insert(0, "tests")
from _searching import searching_little
from _training import small_mlp
norms = [torch.nn.BatchNorm1d(16) for _ in range(3)]  # each overwrites buffers
model = torch.nn.Sequential(*norms, small_mlp())
fn = lambda x: torch.nn.functional.dropout(model(x), 0.1).square().mean()
for budget in (0.7, 0.4):
    with searching_little():
        plan = gcpass.plan(fn, (torch.randn(64, 16),), codegen="eager", memory_budget=budget,
                           on_infeasible="best", solver="segments")
    print(plan.kept, plan.predicted_peak_bytes, plan.graph)
"""


def test_the_plan_does_not_depend_on_hash_seeds() -> None:
    """The whole way from a module; each process takes seconds to import torch."""
    seeds = range(int(os.environ.get("GCPASS_TEST_SEEDS", "2")))
    printed = {_run(seed, PROGRAM) for seed in seeds}
    assert len(printed) == 1 and all(printed)


def _run(seed: int, program: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )
    return done.stdout

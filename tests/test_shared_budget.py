"""One budget for a model that is compiled in parts: what a whole step really holds."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from _oracle import SLACK_NBYTES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gcpass
from gcpass import Plan
from gcpass.fx import _calls
from gcpass.fx._backend import compile_graph
from gcpass.fx._measure import cpu_peak_bytes
from gcpass.fx._options import read_options

WIDTH, ROWS = 32, 1024


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()  # Dynamo may still hold on to graphs, and their groups: budgets differ in tests
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "gcpass")
        yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.down(nn.functional.gelu(self.up(x)))).tanh()


class Model(nn.Module):
    """Blocks one after the other, and ``breaks`` graph breaks among them."""

    def __init__(self, blocks: int, breaks: int = 0, residual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.breaks, self.residual = breaks, residual

    def forward(self, x: Tensor) -> Tensor:
        if self.breaks > 0:
            x = self.stretch(x, 0)
            torch._dynamo.graph_break()
        if self.breaks > 1:
            x = self.stretch(x, 1)
            torch._dynamo.graph_break()
        return self.stretch(x, self.breaks).square().mean()

    def stretch(self, x: Tensor, number: int) -> Tensor:
        size = len(self.blocks) // (self.breaks + 1)
        for block in self.blocks[number * size : (number + 1) * size]:
            x = x + block(x) if self.residual else block(x)
        return x


def backend(budget: Any, plans: list[Plan], **others: Any) -> Callable[..., Any]:
    options = {"memory_budget": budget, "codegen": "eager", "strict": True, **others}
    checked = read_options(options)
    return lambda gm, inputs: compile_graph(gm, inputs, checked, plans.append)


def whole(model: Model, compiler: Any) -> Any:
    return torch.compile(model, backend=compiler, dynamic=False)


def by_block(model: Model, compiler: Any) -> Any:
    for block in model.blocks:
        block.compile(backend=compiler, dynamic=False)
    return model


KINDS = {
    "two graph breaks": (whole, Model(6, breaks=2)),
    "eight blocks": (by_block, Model(8)),
    "eight blocks, added up outside": (by_block, Model(8, residual=True)),
}
DATA = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def steps(model: nn.Module, call: Any, count: int = 3) -> tuple[list[int], list[Tensor]]:
    """The peak of each step, and the last gradients."""
    peaks = []
    for _ in range(count):
        model.zero_grad()
        peaks.append(cpu_peak_bytes(lambda: call(DATA).backward()))
    return peaks, [p.grad for p in model.parameters() if p.grad is not None]


def eager_gradients(model: Model) -> list[Tensor]:
    model.zero_grad()
    model(DATA).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_fraction", [True, False])
def test_the_whole_step_keeps_one_budget(kind: str, is_fraction: bool) -> None:
    compile_parts, model = KINDS[kind]
    expected = eager_gradients(model)
    try:
        free = max(steps(model, compile_parts(model, backend("1GiB", [])), 2)[0])
        torch._dynamo.reset()
        plans: list[Plan] = []
        asked = 0.6 if is_fraction else int(0.6 * free)
        peaks, got = steps(model, compile_parts(model, backend(asked, plans)))
    finally:
        for block in model.blocks:
            block._compiled_call_impl = None
    assert max(peaks[1:]) <= 0.6 * free + SLACK_NBYTES
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert "share the budget" in plans[-1].notes[-1]
    assert any(plan.recompute_seconds for plan in plans[-3:])
    if "eight" in kind:
        assert "in 8 calls" in plans[-1].notes[-1]


def test_a_plan_of_the_first_step_says_that_it_is_provisional() -> None:
    plans: list[Plan] = []
    model = Model(6, breaks=2)
    free, _ = steps(model, whole(model, backend("1GiB", [])), 1)
    torch._dynamo.reset()
    call = whole(model, backend(int(0.61 * free[0]), plans))
    steps(model, call, 1)
    assert not plans[0].notes
    assert all("for the first step" in plan.notes[-1] for plan in plans[1:3])
    steps(model, call, 2)
    assert len(plans) == 6  # each graph once more, and then no more
    assert all("one of 3 graphs in 3 calls" in plan.notes[-1] for plan in plans[3:])


def test_one_graph_alone_is_compiled_once_and_its_calls_wait_for_nobody() -> None:
    plans: list[Plan] = []
    model = Model(3)
    peaks, got = steps(model, whole(model, backend(0.6, plans)), 4)
    assert len(plans) == 1 and not plans[0].notes
    assert max(peaks) <= plans[0].predicted_peak_bytes + SLACK_NBYTES
    torch.testing.assert_close(got, eager_gradients(model), rtol=1e-4, atol=1e-6)


def test_without_a_budget_the_compiled_graph_is_torchs_own() -> None:
    seen: list[Any] = []
    unbounded = read_options({"codegen": "eager"})

    def compiler(gm: Any, inputs: Any) -> Any:
        seen.append(compile_graph(gm, inputs, unbounded))
        return seen[-1]

    steps(Model(2, breaks=1), whole(Model(2, breaks=1), compiler), 1)
    assert len(seen) == 2
    assert not any(compiled.__module__.startswith("gcpass") for compiled in seen)


def test_a_call_beside_another_of_the_same_graph_counts() -> None:
    """Three forwards before one backward, after a step of one."""
    plans: list[Plan] = []
    model = Model(3)
    alone = steps(model, whole(model, backend("1GiB", [])), 1)[0][0]
    torch._dynamo.reset()
    budget = int(1.4 * alone)
    call = whole(model, backend(budget, plans))
    assert max(steps(model, call, 2)[0]) <= budget and len(plans) == 1

    others = [2 * DATA, 3 * DATA]

    def three(x: Tensor) -> Tensor:
        return call(x) + call(others[0]) + call(others[1])

    peaks, got = steps(model, three, 3)
    assert len(plans) == 2
    assert max(peaks[1:]) <= budget < peaks[0]
    model.zero_grad()
    (model(DATA) + model(2 * DATA) + model(3 * DATA)).backward()
    expected = [p.grad for p in model.parameters()]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_measure_waits_for_the_plans_of_the_whole_step() -> None:
    model = Model(4, breaks=1)
    free = gcpass.measure(model, (DATA,), codegen="eager", steps=1)
    torch._dynamo.reset()
    tight = gcpass.measure(model, (DATA,), codegen="eager", steps=1, memory_budget=0.7)
    assert tight.peak_bytes <= 0.7 * free.peak_bytes + SLACK_NBYTES


def test_inference_and_forwards_that_are_dropped_do_not_count() -> None:
    plans: list[Plan] = []
    model = Model(4, breaks=1)
    call = whole(model, backend("1GiB", plans))
    steps(model, call, 1)
    with torch.no_grad():
        call(DATA)
    call(DATA)  # dropped without a backward
    before = len(plans)
    steps(model, call, 2)
    assert len(plans) == before


def test_a_loss_that_is_kept_and_never_derived_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calls never end; steps end all the same, and what they show is planned for."""
    monkeypatch.setattr(_calls, "_PATIENCE", 2)
    model = Model(8)
    free = max(steps(model, by_block(model, backend("1GiB", [])), 2)[0])
    torch._dynamo.reset()
    model, plans, budget = Model(8), list[Plan](), int(0.6 * free)
    by_block(model, backend(budget, plans))
    kept = model(DATA)
    peaks, _ = steps(model, model, 7)
    assert kept.requires_grad and max(peaks[-2:]) <= budget
    assert any("8 calls that share the budget" in note for note in plans[-1].notes)


def test_another_budget_is_another_compilation() -> None:
    model, plans = Model(4, breaks=1), []
    free = max(steps(model, whole(model, backend("1GiB", [])), 1)[0])
    for part in (1.0, 0.7, 1.0):
        budget = int(part * free)
        options = {"memory_budget": budget, "codegen": "eager", "strict": True}
        call = torch.compile(model, backend="gcpass", options=options, dynamic=False)
        plans.append(max(steps(model, call)[0][1:]))
    assert plans[1] <= 0.7 * free < plans[0] == plans[2] <= free


def test_equal_options_share_whoever_gives_them() -> None:
    """Blocks compiled one by one with `torch.compile(..., options={...})`."""
    model = Model(6)
    free = max(steps(model, by_block(model, backend("1GiB", [])), 2)[0])
    torch._dynamo.reset()
    model = Model(6)
    budget = int(0.6 * free)
    for place, block in enumerate(model.blocks):
        options = {"memory_budget": budget, "codegen": "eager", "strict": True}
        compiled: Any = torch.compile(block, backend="gcpass", options=options, dynamic=False)
        model.blocks[place] = compiled
    assert max(steps(model, model)[0][1:]) <= budget


def test_a_budget_that_all_graphs_together_cannot_keep() -> None:
    model = Model(8)
    alone = steps(model.blocks[0], _summed(by_block(model, backend("1GiB", []))), 1)[0][0]
    torch._dynamo.reset()
    budget = int(1.1 * alone)
    by_block(model, backend(budget, []))
    with pytest.raises(gcpass.InfeasibleBudget, match=r"made of .* other calls hold") as e:
        steps(model, model, 3)
    assert e.value.floor_bytes > budget == e.value.budget_bytes


def _summed(model: Model) -> Callable[[Tensor], Tensor]:
    return lambda x: model.blocks[0](x).square().mean()


def test_the_smallest_peak_of_all_graphs_together() -> None:
    model = Model(8)
    options = {"on_infeasible": "best"}
    free = max(steps(model, by_block(model, backend("1GiB", [])), 2)[0])
    torch._dynamo.reset()
    plans: list[Plan] = []
    with pytest.warns(UserWarning, match="Going on with the smallest peak"):
        # A byte is the floor of other tests: what one of those left alive would be of this group.
        peaks, _ = steps(model, by_block(model, backend(3, plans, **options)))
    assert max(peaks[1:]) < 0.6 * free


def test_a_fraction_that_one_block_alone_cannot_keep_is_refused() -> None:
    """It may be one of many, for it is called by a module; a step says that it is not."""
    model = Model(1)
    by_block(model, backend(0.2, []))
    with pytest.raises(gcpass.InfeasibleBudget):
        steps(model, model, 2)


def test_blocks_inside_the_users_checkpoint_hold_nothing() -> None:
    model, plans = Model(6), []
    by_block(model, backend("1GiB", plans))

    def fn(x: Tensor) -> Tensor:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().mean()

    before, got = steps(model, fn)
    torch._dynamo.reset()
    by_block(model, backend(2 * before[0], counted := []))
    after, _ = steps(model, fn)
    assert after == before and len(counted) == len(plans)
    torch.testing.assert_close(got, eager_gradients(Model(6)), rtol=1e-4, atol=1e-6)

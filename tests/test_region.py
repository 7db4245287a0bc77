"""`gcpass.region`: a part of a compiled forward with a budget or a policy of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _training import BUDGETS, assert_same, compiled, gradients
from torch import Tensor, nn

import gcpass
from gcpass import InfeasibleBudget, OptionError, Plan
from gcpass._explain import Row
from gcpass.fx._region import regions_fingerprint
from gcpass.policies import FULL, NONE, sac_matmul

Enter = Callable[[], Any]
X = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
EVERY_OTHER = sac_matmul(2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Six blocks, of which the region holds those from 1 to 4."""

    def __init__(self, enter: Enter = contextlib.nullcontext, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.enter = nn.ModuleList(Block(width) for _ in range(6)), enter

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        with self.enter():
            for block in self.blocks[1:5]:
                x = block(x)
        return self.blocks[5](x).square().mean()


def _plan(enter: Enter = contextlib.nullcontext, **options: Any) -> Plan:
    return gcpass.plan(Net(enter), (X,), codegen="eager", **options)


def _inside(row: Row) -> bool:
    return row.module.startswith(("blocks.1", "blocks.2", "blocks.3", "blocks.4"))


def _saved_nbytes(plan: Plan) -> int:
    return sum(row.nbytes for row in plan.rows() if row.decision == "kept" and _inside(row))


# -- through torch.compile ------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_gradients_and_the_whole_budget(budget: dict[str, Any], tmp_path: Path) -> None:
    """Dynamo traces the region through the package's lazy name, without a graph break."""
    model = Net(lambda: gcpass.region(memory_budget=0.4)).double()
    plain = Net().double()
    report = tmp_path / "plan.json"
    step = compiled(model, {**budget, "report": report}, fullgraph=True)
    assert_same(gradients(step, (X.double(),), model), gradients(plain, (X.double(),), plain))
    plan = Plan.from_json(report.read_text())
    assert any("gcpass.region" in note and "allowed" in note for note in plan.notes)
    if plan.budget_bytes is not None and not any("below" in note for note in plan.notes):
        assert plan.predicted_peak_bytes <= plan.budget_bytes


@pytest.mark.inductor
def test_under_inductor(tmp_path: Path) -> None:
    model, report = Net(lambda: gcpass.region(policy="recompute")), tmp_path / "plan.json"
    step = compiled(model, {"report": report}, "inductor", fullgraph=True)
    got = gradients(step, (X,), model)
    plain = Net()
    assert_same(got, gradients(plain, (X,), plain))
    rows = Plan.from_json(report.read_text()).rows()
    kept = {row.module for row in rows if _inside(row) and row.decision == "kept"}
    assert rows and kept <= {"blocks.4.down"}


def test_outside_of_a_compilation_it_does_nothing() -> None:
    @gcpass.region(policy="save")
    def double(x: Tensor) -> Tensor:
        """Twice."""
        return 2 * x

    with gcpass.region(memory_budget="1GiB"):
        assert torch.equal(double(X), X + X)
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    with pytest.raises(ZeroDivisionError), gcpass.region(policy="save"):
        _ = 1 / 0


def test_a_budget_that_changes_between_calls_compiles_again(tmp_path: Path) -> None:
    model, report, saved = Net(), tmp_path / "plan.json", []
    settings: list[Any] = [0.9, 0.5, "20KiB", 70_000, 0.9]
    model.setting = settings[0]
    model.enter = lambda: gcpass.region(memory_budget=model.setting)
    step = compiled(model, {"report": report}, fullgraph=True)
    for model.setting in settings:
        gradients(step, (X,), model)
        saved.append(_saved_nbytes(Plan.from_json(report.read_text())))
    assert saved[0] > saved[1] > saved[2] and saved[2] <= 20 * 1024 < saved[3] <= 70_000


def test_a_graph_break_inside_a_region_only_loses_it() -> None:
    def fn(model: nn.Module, x: Tensor) -> Tensor:
        with gcpass.region(policy="recompute"):
            x = model(x).sin()
            torch._dynamo.graph_break()
            return model(x).sum()

    model = nn.Linear(16, 16)
    expected = gradients(lambda x: model(model(x).sin()).sum(), (X,), model)
    step = compiled(fn, {})
    assert_same(gradients(lambda x: step(model, x), (X,), model), expected)


# -- budgets --------------------------------------------------------------------------------------


def test_the_budget_of_all_that_the_fastest_plan_saves_changes_nothing() -> None:
    plan, free = _plan(lambda: gcpass.region(memory_budget=1.0)), _plan()
    assert plan.kept == free.kept and plan.recompute_seconds == 0


@pytest.mark.parametrize("budget", [0.8, 0.6, 0.4, 0.2, "60KiB", 20_000])
def test_a_budget_bounds_what_is_saved_of_the_region(budget: Any) -> None:
    """And of nothing else: the blocks around it are left as they were."""
    plan, free = _plan(lambda: gcpass.region(memory_budget=budget)), _plan()
    nbytes = budget if isinstance(budget, int) else 60 * 1024
    if isinstance(budget, float):
        nbytes = int(budget * _saved_nbytes(free))
    assert 0.5 * nbytes < _saved_nbytes(plan) <= nbytes
    around = [
        {r.op for r in p.rows() if r.decision == "kept" and not _inside(r)} for p in (plan, free)
    ]
    assert around[1] <= around[0]


def test_blocks_that_are_alike_are_given_up_one_by_one() -> None:
    fractions = [1.0, 0.85, 0.7, 0.55, 0.4, 0.25]
    plans = [_plan(lambda f=f: gcpass.region(memory_budget=f)) for f in fractions]
    saved, seconds = [_saved_nbytes(p) for p in plans], [p.recompute_seconds for p in plans]
    assert saved == sorted(set(saved), reverse=True)
    assert seconds == sorted(set(seconds))


def test_each_time_a_region_is_entered_it_has_its_budget() -> None:
    w = torch.randn(16, 16, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        for _ in range(3):
            with gcpass.region(memory_budget="16KiB"):
                x = torch.tanh(x @ w).exp().sin()
        return x.sum()

    plan = gcpass.plan(fn, (X,), codegen="eager")
    assert any("in each of 3" in note for note in plan.notes)
    assert [row.target for row in plan.rows() if row.decision == "kept"].count("aten.tanh") <= 6
    assert 3 * 8192 <= plan.saved_bytes <= 3 * 16 * 1024


def test_a_budget_below_what_can_be_reached() -> None:
    """Values of random ops are kept: masks in the region that outweigh its budget."""
    w = torch.randn(16, 16, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        with gcpass.region(memory_budget=16):
            x = F.dropout(torch.tanh(x @ w), 0.5)
        return x.sum()

    with pytest.raises(InfeasibleBudget, match=r"gcpass\.region at .*: give it at least 2048"):
        gcpass.plan(fn, (X,), codegen="eager")
    with pytest.warns(UserWarning, match=r"gcpass\.region"):
        plan = gcpass.plan(fn, (X,), codegen="eager", on_infeasible="best")
    assert plan.saved_bytes == 2048


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.0])
def test_torchs_own_region(fraction: float) -> None:
    """The same fraction; 0 stands for as little as can be."""
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    if region is None:
        pytest.skip("this torch has none")
    plan, free = _plan(lambda: region(fraction)), _plan()
    assert _saved_nbytes(plan) <= fraction * _saved_nbytes(free)
    if fraction:
        own = _plan(lambda: gcpass.region(memory_budget=fraction))
        assert plan.kept == own.kept


# -- policies -------------------------------------------------------------------------------------


def _kept_inside(plan: Plan) -> set[str]:
    return {row.op for row in plan.rows() if row.decision == "kept" and _inside(row)}


def test_save_and_recompute() -> None:
    saved = _plan(lambda: gcpass.region(policy="save"), memory_budget=0.9, on_infeasible="best")
    assert all(row.decision == "kept" for row in saved.rows() if _inside(row))
    again = _plan(lambda: gcpass.region(policy="recompute"))
    assert {row.module for row in again.rows() if row.op in _kept_inside(again)} <= {"blocks.4"}
    assert all(row.decision == "kept" for row in again.rows() if not _inside(row))


@pytest.mark.parametrize(
    ("policy", "like"), [(NONE, "save"), ("none", "save"), (FULL, "recompute")]
)
def test_manual_policies_of_the_same_meaning(policy: Any, like: str) -> None:
    one, other = (_plan(lambda p=p: gcpass.region(policy=p)) for p in (policy, like))
    assert one.kept == other.kept


def test_a_manual_policy_is_asked_for_the_region_alone() -> None:
    plan = _plan(lambda: gcpass.region(policy="sac_matmul"))
    inside = {row.target for row in plan.rows() if _inside(row) and row.decision == "recomputed"}
    assert {"aten.gelu", "aten.native_layer_norm"} <= inside and "aten.addmm" not in inside
    assert all(row.decision == "kept" for row in plan.rows() if not _inside(row))
    objects = _plan(lambda: gcpass.region(policy=EVERY_OTHER))
    assert 0 < len(_kept_inside(objects)) < len(_kept_inside(plan))


def test_a_function_of_a_row() -> None:
    def rule(row: Row) -> str | None:
        return "recompute" if row.target == "aten.gelu" else None

    plan = _plan(lambda: gcpass.region(policy=rule))
    again = [row for row in plan.rows() if row.decision == "recomputed"]
    assert len(again) == 4 and all(_inside(row) and row.target == "aten.gelu" for row in again)
    with pytest.raises(OptionError, match=r"policy .* of gcpass\.region at .* returned 'keep'"):
        _plan(lambda: gcpass.region(policy=lambda row: "keep" if row.target else "rule"))


def test_what_the_code_marks_comes_before_rules_and_policies() -> None:
    plan = _plan(
        lambda: gcpass.region(policy="save"), rules={"blocks.*": "recompute"}, policy="full"
    )
    assert all((row.decision == "kept") for row in plan.rows() if _inside(row))
    assert any("rules['blocks.*'] was not followed" in note for note in plan.notes)


def test_torchs_partitioner_does_not_look_at_regions() -> None:
    plan = _plan(lambda: gcpass.region(policy="recompute"), policy="torch")
    assert any("policy torch does not look at gcpass.region" in note for note in plan.notes)


# -- what is refused, and what caches see ---------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"memory_budget": "1 GiBB"}, r"gcpass\.region\(memory_budget\)='1 GiBB'.*6GiB"),
    ({"memory_budget": 0}, "more than zero"),
    ({"memory_budget": 1.5}, "at most 1"),
    ({"memory_budget": "auto"}, r"'auto'.*write a size"),
    ({"policy": "sav"}, "policy='sav' is not known"),
    ({"policy": "torch"}, "policy='torch' is of whole graphs"),
    ({"policy": 3}, "policy=3"),
    ({}, "needs a memory_budget or a policy"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    """The same error in eager code and under a compilation."""
    with pytest.raises(OptionError, match=text):
        gcpass.region(**arguments)
    model = Net(lambda: gcpass.region(**arguments))
    with pytest.raises(OptionError, match=text):
        gradients(compiled(model, {}), (X,), model)


def _fingerprint(enter: Enter) -> str:
    found: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(regions_fingerprint(gm))
        return gm

    torch._dynamo.reset()
    torch.compile(Net(enter), backend=backend, fullgraph=True)(X)
    return found[0]


def test_regions_are_part_of_what_caches_know_a_graph_by() -> None:
    """torch's own key for a compiled graph leaves out what is annotated in it."""
    torchs = getattr(torch.autograd.graph, "region_activation_memory_budget", None)
    enters: list[Enter] = [
        contextlib.nullcontext,
        lambda: gcpass.region(memory_budget=0.5),
        lambda: gcpass.region(memory_budget=0.6),
        lambda: gcpass.region(memory_budget=5),
        lambda: gcpass.region(policy="save"),
        lambda: gcpass.region(policy="recompute"),
        lambda: gcpass.region(policy=EVERY_OTHER),
        lambda: gcpass.region(policy=lambda row: "save"),
        lambda: gcpass.region(policy=lambda row: "recompute"),
        *([lambda: torchs(0.5), lambda: torchs(0.6)] if torchs else []),
    ]
    first = [_fingerprint(enter) for enter in enters]
    assert len(set(first)) == len(enters)
    assert first == [_fingerprint(enter) for enter in enters]

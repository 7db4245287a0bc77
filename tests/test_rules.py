"""The option ``rules``: what modules shall do, by path; the rest stays the planner's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _training import BUDGETS, FLOOR, assert_same, compiled, gradients
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gcpass
from benchmarks.models import build
from gcpass import InfeasibleBudget, OptionError, Plan
from gcpass._explain import Row
from gcpass.fx._options import read_options


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4)
        self.attention, self.mlp = nn.Linear(width, width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.attention(self.norm(x)))
        return x + self.mlp(x) * torch.softmax(self.router(x), -1)[:, :1]


class Model(nn.Module):
    def __init__(self, layers: int = 4, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


X = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))


def _plan(rules: dict[str, str] | None, **options: Any) -> Plan:
    return gcpass.plan(Model(), (X,), rules=rules, codegen="eager", **options)


def _decided(plan: Plan, decision: str, where: Callable[[Row], bool]) -> set[str]:
    return {row.op for row in plan.rows() if row.decision == decision and where(row)}


def _in(*modules: str) -> Callable[[Row], bool]:
    return lambda row: any(f".{row.module}.".find(f".{module}.") >= 0 for module in modules)


# -- what they do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_what_a_module_computes_inside_is_not_kept(budget: dict[str, Any]) -> None:
    """At any budget, or none; what it hands on may be."""
    plan = _plan({"layers.*.mlp": "recompute"}, **budget)
    assert not _decided(plan, "kept", lambda row: _in("up")(row) or row.target == "aten.gelu")
    if not budget:
        assert _decided(plan, "kept", _in("down")) and _decided(
            plan, "kept", _in("attention", "norm")
        )


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_nothing_of_a_saved_module_runs_twice(budget: dict[str, Any]) -> None:
    plan = _plan({"layers.1": "save"}, **budget)
    assert not _decided(plan, "recomputed", _in("layers.1"))
    if budget == FLOOR:
        assert _decided(plan, "recomputed", _in("layers.2"))


def test_layers_that_are_recomputed_keep_what_passes_between_them() -> None:
    """As `gradient_checkpointing` does: the policy ``per_block`` is no better, nor worse."""
    plan, blocks = _plan({"layers.*": "recompute"}), _plan(None, policy="per_block")
    inside = _in("layers.1", "layers.2", "layers.3")
    assert _decided(plan, "kept", inside) == _decided(blocks, "kept", inside)
    assert plan.predicted_peak_bytes == blocks.predicted_peak_bytes


@pytest.mark.parametrize(
    "rules",
    [
        {"layers.*": "recompute", "*.router": "save"},
        {"*.router": "save", "layers.*": "recompute"},
        {"layers.*": "recompute", "*.router": "recompute", "layers.*.router": "save"},
    ],
    ids=["inner last", "inner first", "the same module, later"],
)
def test_the_innermost_module_wins_and_then_the_later_rule(rules: dict[str, str]) -> None:
    plan = _plan(rules)
    assert len(_decided(plan, "kept", _in("router"))) == 4
    assert not _decided(plan, "recomputed", _in("router"))
    assert not _decided(plan, "kept", _in("mlp", "attention"))


def test_a_pattern_may_start_anywhere_in_a_path() -> None:
    wrapped = nn.ModuleDict({"inner": Model()})

    def fn(x: Tensor) -> Tensor:
        return wrapped["inner"](x)

    for pattern in ("layers.[01].mlp", "inner.layers.[01].mlp", "*.*.[01].mlp"):
        plan = gcpass.plan(fn, (X,), rules={pattern: "recompute"}, codegen="eager")
        again = _decided(plan, "recomputed", lambda row: True)
        assert len(again) == 4, pattern  # up and gelu of two layers


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_gradients_under_rules(budget: dict[str, Any]) -> None:
    model = Model().double()
    expected = gradients(model, (X.double(),), model)
    rules = {"layers.*": "recompute", "layers.2": "save", "*.router": "save"}
    step = compiled(model, {"rules": rules, **budget, "on_infeasible": "best"}, fullgraph=True)
    assert_same(gradients(step, (X.double(),), model), expected)


def test_a_plan_remembers_its_rules() -> None:
    plan = _plan({"layers.*.mlp": "recompute", "*.router": "save"})
    assert plan.rules == (("layers.*.mlp", "recompute"), ("*.router", "save"))
    assert Plan.from_json(plan.to_json()) == plan
    assert "layers.*.mlp: recompute, *.router: save" in plan.summary()


def test_measure_and_frontier_follow_rules() -> None:
    rules = {"layers.*.mlp": "recompute"}
    free = gcpass.measure(Model(), (X,), codegen="eager", steps=1)
    ruled = gcpass.measure(Model(), (X,), rules=rules, codegen="eager", steps=1)
    assert ruled.peak_bytes < free.peak_bytes
    for plan in gcpass.frontier(Model(), (X,), rules=rules, codegen="eager", points=4).points:
        assert not _decided(plan, "kept", lambda row: row.target == "aten.gelu")
        assert plan.rules == tuple(rules.items())


# -- what they meet -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["none", "full", "per_block", "sac_matmul"])
def test_a_manual_policy_decides_what_rules_leave_open(policy: str) -> None:
    plan = _plan({"layers.0": "save", "layers.1": "recompute"}, policy=policy)
    assert not _decided(plan, "recomputed", _in("layers.0"))
    assert not _decided(plan, "kept", _in("up", "attention")) & _decided(
        plan, "kept", _in("layers.1")
    )
    rest = _decided(plan, "recomputed", _in("layers.2"))
    assert bool(rest) is (policy != "none")


def test_rules_come_before_a_function_of_a_row() -> None:
    plan = _plan({"layers.*.mlp": "save"}, policy=lambda row: "recompute")
    assert not _decided(plan, "recomputed", _in("mlp"))
    assert _decided(plan, "recomputed", _in("attention"))
    assert any(
        "was not followed" in n and "rules['layers.*.mlp'] saves it" in n for n in plan.notes
    )


def test_rules_overrule_preferences() -> None:
    """Plain checkpointing prefers to recompute all of its region."""
    model = Model()

    def fn(x: Tensor) -> Tensor:
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    plan = gcpass.plan(fn, (X,), rules={"layers.*.mlp": "save"}, codegen="eager")
    assert not _decided(plan, "recomputed", _in("mlp"))
    assert _decided(plan, "recomputed", _in("attention"))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(16, 16), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.layer(x).relu()).sin()


def test_what_must_not_run_twice_is_kept_all_the_same_and_the_plan_says_so() -> None:
    model = nn.Sequential(Dropping(), nn.Linear(16, 16))
    fn = lambda x: model(x).square().mean()
    plan = gcpass.plan(fn, (X,), rules={"0": "recompute"}, codegen="eager")
    (note,) = (n for n in plan.notes if "was not followed" in n)
    assert "rules['0']" in note and "random op" in note
    step = compiled(fn, {"rules": {"0": "recompute"}})
    torch.manual_seed(0)
    got = gradients(step, (X,), model)
    step = compiled(fn, {"policy": "none"})
    torch.manual_seed(0)
    assert_same(got, gradients(step, (X,), model))


def test_where_rules_leave_no_plan_the_error_names_them() -> None:
    budget = int(0.5 * _plan(None).predicted_peak_bytes)
    assert _plan(None, memory_budget=budget).predicted_peak_bytes <= budget
    with pytest.raises(InfeasibleBudget, match=r"under rules\['layers\.\*'\]") as refused:
        _plan({"layers.*": "save"}, memory_budget=budget)
    assert refused.value.budget_bytes == budget < refused.value.floor_bytes


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "cure"),
    [
        ("layers.*", r"rules='layers\.\*' must map"),
        (["layers.*"], "must map"),
        ({"layers.*": "keep"}, r"rules\['layers\.\*'\]='keep'.*known: recompute, save"),
        ({"layers.*": "recomput"}, "did you mean 'recompute'"),
        ({"layers.*": None}, "known"),
        ({"layers.*": ["save"]}, "known"),
        ({3: "save"}, r"rules\[3\].*module's path"),
        ({"": "save"}, "module's path"),
        ({"layers..mlp": "save"}, "module's path"),
    ],
)
def test_bad_rules(rules: Any, cure: str) -> None:
    for refuse in (lambda: read_options({"rules": rules}), lambda: _plan(rules)):
        with pytest.raises(OptionError, match=cure):
            refuse()


def test_what_leaves_nothing_to_rules_is_refused() -> None:
    with pytest.raises(OptionError, match=r"rules=.*policy='torch:0.5'.*one of the two"):
        read_options({"rules": {"a": "save"}, "policy": "torch:0.5"})
    with pytest.raises(OptionError, match=r"rules=.*stored plan.*one of the two"):
        read_options({"rules": {"layers.*": "save"}, "plan": _plan(None)})


def test_a_pattern_that_names_no_module() -> None:
    with pytest.raises(OptionError, match=r"'layers\.\*\.mpl'.*did you mean 'layers\.\*\.mlp'"):
        _plan({"layers.*.mpl": "save"})
    w = torch.randn(4, 4, requires_grad=True)
    with pytest.raises(OptionError, match="no modules"):
        gcpass.plan(
            lambda x: (x @ w).sin().sum(), (w.detach(),), rules={"mlp": "save"}, codegen="eager"
        )


def test_a_pattern_may_name_a_module_of_another_graph(tmp_path: Path) -> None:
    """Two graphs, each with a module that the other has not: a note; a misspelt name: a warning."""
    head, tail = nn.Linear(16, 16), nn.Linear(16, 16)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.projection = head, tail

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x).sin()
            torch._dynamo.graph_break()
            return self.projection(x).sin().sum()

    net, report = Net(), tmp_path / "plan.json"
    options = {"rules": {"encoder": "save", "projection": "save"}, "report": report}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients(compiled(net, options), (X,), net)
    assert not any("rules[" in str(warning.message) for warning in caught)
    assert any("names no module" in note for note in Plan.from_json(report.read_text()).notes)
    with pytest.warns(UserWarning, match=r"rules\['encodr'\].*did you mean 'encoder'"):
        gradients(compiled(net, {"rules": {"encodr": "save"}}), (X,), net)


# -- routers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
@pytest.mark.parametrize("budget", [None, 1])
def test_mixtrals_routing_is_kept_by_default(codegen: str, budget: int | None) -> None:
    fn, args = build("mixtral", "tiny")
    plan = gcpass.plan(
        fn, args, codegen=codegen, memory_budget=budget, on_infeasible="best", hardware="reference"
    )
    assert not _decided(plan, "recomputed", lambda row: row.target == "aten.topk")


def test_mixtrals_experts_are_recomputed_and_its_gates_saved() -> None:
    fn, args = build("mixtral", "tiny")
    rules = {"layers.*.mlp": "recompute", "*.gate": "save"}
    plan = gcpass.plan(fn, args, rules=rules, codegen="eager")
    assert _decided(plan, "kept", _in("gate")) and not _decided(plan, "recomputed", _in("gate"))
    experts = [row for row in plan.rows() if _in("experts")(row)]
    silu = [row.decision for row in experts if row.target == "aten.silu"]
    assert silu and set(silu) == {"recomputed"}
    assert any(
        "rules['layers.*.mlp'] was not followed" in n and "custom op" in n for n in plan.notes
    )

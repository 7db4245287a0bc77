"""Options and environment variables: what is refused, in which words, and what is honoured."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from _training import FLOOR, assert_same, compiled, gradients, small_mlp

import gcpass
from gcpass import CaptureError, GcpassError, InfeasibleBudget, OptionError, Plan
from gcpass._errors import GcpassError as BaseOfAll
from gcpass._units import format_bytes
from gcpass.fx._compat import check_torch_version
from gcpass.fx._options import read_options


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCPASS_BUDGET", raising=False)
    monkeypatch.delenv("GCPASS_REPORT", raising=False)


def _train(options: dict[str, Any], batch: int = 512) -> Any:
    """One compiled step of a model whose activations outweigh its gradients."""
    model, x = small_mlp(), torch.randn(batch, 16, generator=torch.Generator().manual_seed(0))
    return gradients(compiled(lambda x: model(x).square().mean(), options), (x,), model)


# option, bad value, what the error must name besides the value: the cure
BAD: list[tuple[str, Any, str]] = [
    ("memory_budget", "6 GiBB", "6GiB"),
    ("memory_budget", "", "6GiB"),
    ("memory_budget", "   ", "6GiB"),
    ("memory_budget", "lots", "6GiB"),
    ("memory_budget", "-1GiB", "6GiB"),
    ("memory_budget", "0MiB", "more than zero"),
    ("memory_budget", 0, "more than zero"),
    ("memory_budget", -5, "more than zero"),
    ("memory_budget", 1.5, "at most 1"),
    ("memory_budget", 0.0, "more than 0"),
    ("memory_budget", "1.5", "at most 1"),
    ("memory_budget", float("nan"), "at most 1"),
    ("memory_budget", True, "6GiB"),
    ("memory_budget", ["6GiB"], "6GiB"),
    ("reserve", "2 parsecs", "2GiB|6GiB"),
    ("reserve", -1, "2GiB"),
    ("policy", "selectiv", "known|did you mean"),
    ("policy", "ful", "did you mean 'full'"),
    ("policy", "torch:x", "number"),
    ("policy", "torch:1.5", "between 0 and 1"),
    ("policy", "torch:nan", "between 0 and 1"),
    ("policy", 3, "policy"),
    ("solver", "simplex", "known"),
    ("solver", "segmnts", "did you mean 'segments'"),
    ("hardware", "abacus", "known"),
    ("on_infeasible", "bset", "best"),
    ("codegen", "indutor", "did you mean 'inductor'"),
    ("report", 3, "path"),
    ("plan", 3, "gcpass.Plan"),
    ("plan", "/nowhere/at/all.json", "cannot be read"),
    ("plan", "{}", "not a gcpass plan"),
]


@pytest.mark.parametrize(("name", "value", "cure"), BAD, ids=[f"{n}-{v}" for n, v, _ in BAD])
def test_a_bad_value_is_refused(name: str, value: Any, cure: str) -> None:
    """One OptionError that names the option, the value, and what to write instead."""
    with pytest.raises(OptionError, match=cure) as refused:
        read_options({name: value})
    text = str(refused.value)
    if (name, value) != ("plan", "{}"):
        assert name in text
        assert repr(value).strip("'") in text or repr(value) in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [("memory_bugdet", "memory_budget"), ("polcy", "policy"), ("max_autotun", "max_autotune")],
)
def test_a_misspelt_option_is_refused(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*did you mean '{meant}'"):
        read_options({name: 1})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'zzz_zzz'.*neither a gcpass nor an Inductor option"):
        read_options({"zzz_zzz": True})


@pytest.mark.parametrize(
    "options",
    [
        {"memory_budget": "6 GiBB"},
        {"memory_bugdet": "6GiB"},
        {"policy": "selectiv"},
        {"report": "/nowhere/at/all/report.json"},
    ],
    ids=lambda o: next(iter(o)),
)
def test_errors_reach_the_user_of_torch_compile(options: dict[str, Any]) -> None:
    """As gcpass's own error, the only line of its kind: Dynamo does not wrap it."""
    with pytest.raises(OptionError) as refused:
        _train(options)
    assert isinstance(refused.value, BaseOfAll) and isinstance(refused.value, ValueError)
    ((name, value),) = options.items()
    assert (name if name == "memory_bugdet" else value) in str(refused.value)
    assert "backend=" not in str(refused.value)
    assert type(refused.value).__name__ == "OptionError"


def test_the_environment_gives_the_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GCPASS_BUDGET", "3MiB")
    monkeypatch.setenv("GCPASS_REPORT", str(tmp_path / "plan.json"))
    _train({})
    assert json.loads((tmp_path / "plan.json").read_text())["budget_bytes"] == 3 * 2**20
    assert read_options({"memory_budget": None}).request.budget.nbytes is None
    assert read_options({"memory_budget": "1MiB"}).request.budget.nbytes == 2**20


@pytest.mark.parametrize("value", ["6 GiBB", "0", "-3", "1.5"])
def test_the_environment_is_named_in_errors(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GCPASS_BUDGET", value)
    with pytest.raises(OptionError, match=f"GCPASS_BUDGET='{value}'"):
        read_options({})
    with pytest.raises(OptionError, match="GCPASS_BUDGET"):
        _train({})


def test_a_report_from_the_environment_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GCPASS_REPORT", "/nowhere/at/all.json")
    with pytest.raises(OptionError, match=r"(?i)report.*/nowhere/at/all.json.*cannot be written"):
        _train({})


def test_a_text_report_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    _train({"report": True, "memory_budget": "3MiB"})
    captured = capsys.readouterr()
    assert "budget 3.0 MiB" in captured.err and captured.out == ""


# -- budgets that cannot be kept ---------------------------------------------------------------


def test_an_infeasible_budget() -> None:
    """The error has the numbers, the text has the floor and knobs, and the floor is reachable."""
    with pytest.raises(InfeasibleBudget) as refused:
        _train({"memory_budget": "1KiB"})
    error = refused.value
    assert error.budget_bytes == 1024 < error.floor_bytes
    assert format_bytes(error.floor_bytes) in str(error) and "memory_budget" in str(error)
    assert "Raise the budget" in str(error) and "smaller batch" in str(error)
    _train({"memory_budget": error.floor_bytes})
    with pytest.raises(InfeasibleBudget):
        _train({"memory_budget": error.floor_bytes - 1})


def test_plan_raises_the_same_and_the_floor_is_reachable() -> None:
    model, x = small_mlp(), torch.randn(512, 16)
    with pytest.raises(InfeasibleBudget) as refused:
        gcpass.plan(model, (x,), codegen="eager", memory_budget=1)
    floor = refused.value.floor_bytes
    plan = gcpass.plan(model, (x,), codegen="eager", memory_budget=floor)
    assert plan.predicted_peak_bytes == floor == plan.budget_bytes


def test_on_infeasible_best_warns_and_trains() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = _train(FLOOR)
    (warning,) = [str(w.message) for w in caught if "gcpass" in str(w.message)]
    assert "below the smallest peak" in warning and "smallest peak" in warning
    assert_same(got, _train({"policy": "none"}))


# -- plans, functions and versions that do not fit ---------------------------------------------


def test_a_stored_plan_is_followed(tmp_path: Path) -> None:
    report = tmp_path / "plan.json"
    first = _train({**FLOOR, "report": str(report)})
    plan = Plan.from_json(report.read_text())
    for given in (plan, plan.to_json(), str(report), report):
        assert_same(_train({"plan": given}), first)


def test_a_plan_for_another_graph_is_refused(tmp_path: Path) -> None:
    _train({"report": str(tmp_path / "plan.json")})
    with pytest.raises(OptionError, match=r"plan was made for another graph.*plan again"):
        _train({"plan": str(tmp_path / "plan.json")}, batch=256)


def test_a_result_without_gradient_is_refused() -> None:
    with pytest.raises(CaptureError, match="needs a gradient: return a loss"):
        gcpass.plan(lambda x: x.sum(), (torch.randn(3),), codegen="eager")
    with pytest.raises(CaptureError, match="needs a gradient: return a loss"):
        gcpass.measure(lambda x: x.sum(), (torch.randn(3),), codegen="eager")


def test_an_old_torch_is_refused() -> None:
    with pytest.raises(GcpassError, match=r"torch 2\.9\.0.*torch >= 2\.11.*pip install"):
        check_torch_version("2.9.0")
    for good in ("2.11.0", "2.13.0+cpu", "3.0.0a0+git1234"):
        check_torch_version(good)


@pytest.mark.inductor
def test_inductor_options_pass_through() -> None:
    """They reach Inductor, beside gcpass's own."""
    assert read_options({"max_autotune": False}).inductor == {"max_autotune": False}
    assert read_options({}, "max-autotune").inductor["max_autotune"] is True
    seen: list[Any] = []

    def record(graph: Any) -> None:
        seen.append(torch._inductor.config.max_autotune_gemm_backends)

    options = {
        "codegen": "inductor",
        "max_autotune_gemm_backends": "ATEN",
        "post_grad_custom_post_pass": record,
        **FLOOR,
    }
    got = _train(options)
    assert seen and set(seen) == {"ATEN"}
    assert_same(got, _train({"policy": "none"}))

"""A stage of gcpass that fails inside a user's training: one warning, a report, and it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from _training import assert_same, compiled, gradients, small_mlp
from torch import Tensor

from gcpass._errors import OptionError, UnsupportedGraph
from gcpass.fx import _part, _partitioner

STAGES = ("analyze", "make_plan", "lower")
FAILURES = {"UnsupportedGraph": UnsupportedGraph, "ZeroDivisionError": ZeroDivisionError}


def _break(monkeypatch: pytest.MonkeyPatch, stage: str, failure: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise FAILURES[failure]("a test's wish")

    for module in (_partitioner, _part):  # a graph alone, and one that shares its budget
        monkeypatch.setattr(module, stage, refuse, raising=False)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on(
    stage: str, failure: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch's own partition takes over; one warning says why, and where the report is."""
    _break(monkeypatch, stage, failure)
    monkeypatch.setenv("GCPASS_DEBUG_DIR", str(tmp_path / "reports"))
    model, x = small_mlp(), torch.randn(8, 16)
    secret = 1234.5

    def fn(x: Tensor) -> Tensor:
        return model(x).square().mean() + x.new_tensor(0)

    x[0, 0] = secret
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = gradients(
            compiled(fn, {"memory_budget": "1KiB", "on_infeasible": "best", "strict": False}),
            (x,),
            model,
        )
    assert_same(got, gradients(fn, (x,), model))
    (warning,) = [str(w.message) for w in caught if "cannot plan" in str(w.message)]
    (report,) = (tmp_path / "reports").iterdir()
    assert "a test's wish" in warning and "budget" in warning and str(report) in warning
    text = report.read_text()
    assert "a test's wish" in text and torch.__version__ in text and "aten.addmm" in text
    assert "on_infeasible='best'" in text  # the options
    assert "small_mlp" not in text and str(secret) not in text  # no source, no data


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("stage", STAGES)
def test_strict_raises(stage: str, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, stage, failure)
    model = small_mlp()
    with pytest.raises(Exception, match="a test's wish"):
        compiled(lambda x: model(x).sum(), {"strict": True})(torch.randn(8, 16))


def test_strict_is_true_or_false() -> None:
    with pytest.raises(OptionError, match=r"strict='yes' must be True or False"):
        compiled(small_mlp(), {"strict": "yes"})(torch.randn(8, 16))


@pytest.mark.filterwarnings("ignore:gcpass cannot plan")
def test_gradients_of_the_fallback_are_right_after_a_mutation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's own partition would read the overwritten scale again (pytorch#197039)."""
    _break(monkeypatch, "analyze", "ZeroDivisionError")

    def run(compile_it: bool) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        scale, w = torch.full((16,), 0.1), torch.randn(16, 16, requires_grad=True)

        def fn(x: Tensor) -> Tensor:
            y = torch.tanh(x @ w) * scale.exp()
            z = (y * scale.exp()).square().sum()
            scale.add_(1)
            return z

        call = compiled(fn, {"strict": False}) if compile_it else fn
        return gradients(call, (torch.randn(8, 16),), [w])

    assert_same(run(True), run(False))


def test_an_unwritable_folder_is_no_second_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _break(monkeypatch, "analyze", "ZeroDivisionError")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GCPASS_DEBUG_DIR", str(tmp_path / "file"))
    model = small_mlp()
    with pytest.warns(UserWarning, match="not kept for it$"):
        compiled(lambda x: model(x).sum(), {"strict": False})(torch.randn(8, 16)).backward()


def test_logging_by_name() -> None:
    """Nothing is printed by default; TORCH_LOGS="+gcpass" shows the logger's messages."""
    program = (
        "import torch\n"
        "w = torch.randn(4, 4, requires_grad=True)\n"
        "f = torch.compile(lambda x: (x @ w).tanh().sum(), backend='gcpass',"
        " options={'codegen': 'eager'})\n"
        "f(torch.randn(3, 4)).backward()\n"
    )
    quiet = {name: value for name, value in os.environ.items() if name != "TORCH_LOGS"}
    for setting, shown in (({}, False), ({"TORCH_LOGS": "+gcpass"}, True)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**quiet, **setting},
        )
        assert ("gcpass" in done.stderr) is shown, done.stderr
        assert done.stdout == ""

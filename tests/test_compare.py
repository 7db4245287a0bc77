"""`gcpass compare`: every configuration is a row, whatever became of it; gradients are checked."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.models import build
from gcpass._cli import app
from gcpass._comparison import Comparison, ComparisonRow, match_of
from gcpass._errors import OptionError
from gcpass._report._comparison import comparison_table, verdict
from gcpass.fx._comparison import Setting, measured, predicted
from gcpass.fx._measure import Step

STEP = """
import torch
from torch import nn

def step():
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.GELU())]
    model = nn.Sequential(*layers)
    return (lambda x: model(x).square().mean()), (torch.randn(512, 32),)

def broken():
    return (lambda x: x + 1), (torch.randn(3),)
"""


def _setting(*policies: str, **options: Any) -> Setting:
    return Setting(policies, **{"codegen": "eager", "hardware": "reference", "steps": 1, **options})


def _quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def mlp_rows() -> list[ComparisonRow]:
    fn, args = build("mlp", "tiny", layers=8, batch=512)
    setting = _setting("none", "per_block", "torch:0.5", budgets=("0.7", "1KiB"))
    return measured("mlp", fn, args, setting, _quiet)


def test_rows(mlp_rows: list[ComparisonRow]) -> None:
    labels = [row.label for row in mlp_rows]
    assert labels[:6] == ["gcpass", "none", "per_block", "torch:0.5", "gcpass 0.7", "gcpass 1KiB"]
    assert set(labels[6:]) == {"gcpass at per_block", "gcpass at torch:0.5"}
    by_label = {row.label: row for row in mlp_rows}
    assert by_label["gcpass 1KiB"].status == "infeasible"
    assert "smallest peak" in (by_label["gcpass 1KiB"].error or "")
    for row in mlp_rows:
        if row.status == "ok":
            assert row.measured_peak_bytes == pytest.approx(row.predicted_peak_bytes, rel=1e-4)
            assert len(row.seconds) == 1
            assert row.gradient_reference == "eager"
            assert row.gradient_error is not None
            assert row.gradient_error < 1e-5


def test_the_optimiser_recomputes_less_at_a_policys_peak(mlp_rows: list[ComparisonRow]) -> None:
    row = next(row for row in mlp_rows if row.label == "per_block")
    other = match_of(row, mlp_rows)
    assert other is not None
    assert other.label == "gcpass at per_block"
    assert other.measured_peak_bytes <= row.measured_peak_bytes
    assert other.recompute_ratio < row.recompute_ratio


def test_a_policy_that_holds_most_is_matched_by_the_fastest_plan() -> None:
    free = ComparisonRow("m", "gcpass", measured_peak_bytes=10)
    none = ComparisonRow("m", "none", "none", measured_peak_bytes=10)
    less = ComparisonRow("m", "full", "full", measured_peak_bytes=9)
    assert match_of(none, [free, none, less]) is free
    assert match_of(less, [free, none, less]) is None
    assert match_of(ComparisonRow("other", "none", "none"), [free]) is None


def test_masks_drawn_again_are_seen() -> None:
    """torch's partitioner draws dropout's masks again in the backward (pytorch#190758)."""
    fn, args = build("vit", "tiny", dropout=0.5)
    rows = measured("vit", fn, args, _setting("none", "per_block", "torch:0.3"), _quiet)
    errors = {row.label: row.gradient_error for row in rows}
    assert errors["none"] == pytest.approx(0, abs=1e-5)
    assert errors["per_block"] == pytest.approx(0, abs=1e-5)
    assert errors["gcpass at torch:0.3"] == pytest.approx(0, abs=1e-5)
    assert errors["torch:0.3"] > 0.01
    assert {row.gradient_reference for row in rows} == {"gcpass"}


def test_predicting_agrees_with_running(mlp_rows: list[ComparisonRow]) -> None:
    fn, args = build("mlp", "tiny", layers=8, batch=512)
    setting = _setting("none", "per_block", "torch:0.5", budgets=("0.7", "1KiB"))
    rows = predicted("mlp", fn, args, setting, _quiet)
    assert [(r.label, r.status, r.predicted_peak_bytes, r.recompute_ratio) for r in rows] == [
        (r.label, r.status, r.predicted_peak_bytes, r.recompute_ratio) for r in mlp_rows
    ]
    assert all(row.measured_peak_bytes is None for row in rows)


def test_what_fails_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Step.run

    def run_or_fail(step: Step) -> None:
        if step.options is not None and step.options.request.policy is not None:
            raise RuntimeError("out of memory\nadvice")
        run(step)

    monkeypatch.setattr(Step, "run", run_or_fail)
    fn, args = build("mlp", "tiny")
    rows = measured("mlp", fn, args, _setting("none"), _quiet)
    assert [(row.label, row.status) for row in rows] == [("gcpass", "ok"), ("none", "failed")]
    assert rows[1].error == "RuntimeError: out of memory"
    assert rows[0].seconds_median is not None


def test_records(mlp_rows: list[ComparisonRow]) -> None:
    run = {"codegen": "eager", "hardware": "reference", "steps": 1, "device": "here"}
    longest = replace(mlp_rows[0], label="gcpass at selective_attention", budget_bytes=400 * 2**20)
    made = Comparison(run, (*mlp_rows, longest))
    assert Comparison.from_jsonl(made.to_jsonl()) == made
    table = list(csv.DictReader(io.StringIO(made.to_csv())))
    assert [row["label"] for row in table] == [row.label for row in made.rows]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_table(made))
    text = console.export_text()
    assert "…" not in text  # nothing is cut at the width of a terminal
    assert "infeasible" in text
    assert any(line.startswith("mlp: at per_block's peak") for line in verdict(made))


def test_what_ran_without_a_plan_is_not_compared(mlp_rows: list[ComparisonRow]) -> None:
    """Where gcpass cannot plan, torch's own partition runs: that says nothing of the policy."""
    rows = [replace(r, recompute_ratio=None) if r.label == "per_block" else r for r in mlp_rows]
    lines = verdict(Comparison({}, tuple(rows)))
    assert any("torch:0.5's peak" in line for line in lines)
    assert not any("per_block" in line for line in lines)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "steps.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return "steps.py:step"


def test_command(step: str) -> None:
    options = ["--codegen=eager", "--hardware=reference", "--steps=1", "--policies=per_block"]
    written = ["--jsonl=a.jsonl", "--csv=a.csv", "--plot=a.png"]
    result = CliRunner().invoke(app, ["compare", step, *options, *written])
    assert result.exit_code == 0, result.output
    head, *rows = map(json.loads, Path("a.jsonl").read_text().splitlines())
    assert head["run"]["seed"] == 0
    assert {"device", "torch", "gcpass", "commit", "command", "date"} <= head["run"].keys()
    assert [row["label"] for row in rows] == ["gcpass", "per_block", "gcpass at per_block"]
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert "per_block" in Path("a.csv").read_text()
    assert "at per_block's peak" in result.output


def test_command_predicts_only(step: str) -> None:
    arguments = ["compare", step, "--codegen=eager", "--predict-only", "--policies=sqrt,torch:0.2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "sqrt" in result.output
    assert "grad" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policies", "per_blok"], "per_blok"),
        (["--budgets", "0.5,12 cows"], "12 cows"),
        (["--jsonl", "no/such/dir/a.jsonl"], "--jsonl"),
        (["--csv", "."], "--csv"),
        (["--fake"], "--predict-only"),
    ],
)
def test_bad_input_is_told_before_any_work(step: str, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["compare", step, *arguments])
    assert isinstance(result.exception, OptionError)
    assert said in str(result.exception)


def test_steps_are_compared_round_by_round() -> None:
    """A machine that slows down between rounds does not make either slower than the other."""
    base = ComparisonRow("mlp", "gcpass", seconds=(1.0, 2.0, 8.0))
    row = ComparisonRow("mlp", "none", seconds=(1.1, 2.2, 4.0))
    assert row.times_longer(base) == pytest.approx(1.1)
    assert row.times_longer(replace(base, seconds=())) is None
    assert replace(row, seconds=()).times_longer(base) is None

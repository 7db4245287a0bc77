"""The script for CUDA devices, tried on the CPU as far as that goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a tiny run on the CPU, and what stands above them."""
    out = tmp_path / "record.jsonl"
    given = ["gpu", "--device", "cpu", "--tiny", "--out", str(out), *arguments]
    monkeypatch.setattr("sys.argv", given)
    gpu.main()
    head, *rows = map(json.loads, out.read_text().splitlines())
    return rows, head


def test_the_sweep_compares_at_the_bytes_that_torch_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "SWEEP", (0.1, 0.3))
    rows, head = run(tmp_path, monkeypatch, "--parts", "2")
    assert head["where"]["torch"]
    labels = [row["row"] for row in rows]
    assert labels == ["torch 0.1", "gcpass at torch 0.1", "torch 0.3", "gcpass at torch 0.3"]
    for torchs, ours in zip(rows[::2], rows[1::2], strict=True):
        assert ours["budget_bytes"] == torchs["measured_bytes"]
        assert ours["measured_bytes"] <= ours["budget_bytes"]
        assert ours["recompute_ratio"] <= torchs["recompute_ratio"]
    said = capsys.readouterr().out
    assert "torch : 2 budgets" in said
    assert "gcpass at torch : 2 budgets" in said


def test_the_largest_batch_is_the_largest_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = run(tmp_path, monkeypatch, "--parts", "4", "--codegen", "eager")
    found = {row["row"].split()[0]: row for row in rows}
    assert set(found) == {"none", "per_block", "torch", "gcpass"}
    assert all("error" not in row for row in rows), rows
    assert all(row["measured_bytes"] <= gpu.BATCH_BUDGET["tiny"] for row in rows)
    assert found["gcpass"]["batch"] >= found["per_block"]["batch"]
    assert found["gcpass"]["batch"] > found["none"]["batch"]
    assert all(row["tokens_per_second"] > 0 for row in rows)


def test_a_row_without_time_or_that_fails_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = run(tmp_path, monkeypatch, "--parts", "2", "--minutes", "0")
    assert rows
    assert all("skipped" in row for row in rows)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(gpu, "run", fail)
    rows, _ = run(tmp_path, monkeypatch, "--parts", "3")
    assert [row["error"] for row in rows] == ["RuntimeError: out of luck"]


def test_without_a_device_the_script_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if gpu.torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path / "record.jsonl")])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "no CUDA device" in capsys.readouterr().err

"""Profiles of devices: read, checked, found by name, measured and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import gcpass
from gcpass._cli import app
from gcpass._hardware import (
    Hardware,
    known_profiles,
    profile_for,
    profile_named,
    read_profile,
)
from gcpass.fx import _calibrate, _devices, _prices
from gcpass.fx._calibrate import STAGES, calibrate
from gcpass.fx._costs import Roofline

CPU = torch.device("cpu")
WANTED = {
    "h100", "h200", "a100-40", "a100-80", "l40s", "a10g", "l4", "rtx4090", "rtx3090", "mi300x",
    "cpu",
}  # fmt: skip
NAMES = [  # what torch.cuda.get_device_name() says there
    ("NVIDIA H100 80GB HBM3", "h100"),
    ("NVIDIA H200", "h200"),
    ("NVIDIA A100-SXM4-40GB", "a100-40"),
    ("NVIDIA A100-SXM4-80GB", "a100-80"),
    ("NVIDIA A100 80GB PCIe", "a100-80"),
    ("NVIDIA L40S", "l40s"),
    ("NVIDIA A10G", "a10g"),
    ("NVIDIA L4", "l4"),
    ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ("NVIDIA GeForce RTX 3090", "rtx3090"),
    ("AMD Instinct MI300X", "mi300x"),
    ("NVIDIA H100 PCIe", None),  # another clock, another memory
    ("NVIDIA A10", None),
    ("NVIDIA L40", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ("NVIDIA GeForce RTX 3090 Ti", None),
]


def test_every_promised_profile_is_there_with_its_source() -> None:
    profiles = known_profiles()
    assert set(profiles) == WANTED
    for name, hardware in profiles.items():
        assert hardware.name == name
        assert len(hardware.source) > 30
        assert hardware.device == ("cpu" if name == "cpu" else "cuda")
        assert 0 < hardware.attained["matmul"] <= 1


@pytest.mark.parametrize(("device_name", "profile"), NAMES)
def test_a_device_is_known_by_its_name(device_name: str, profile: str | None) -> None:
    found = profile_for("cuda", device_name)
    assert (found.name if found else None) == profile


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    hardware = profile_named("h100")
    path = tmp_path / "mine.json"
    path.write_text(hardware.to_json())
    assert read_profile(path) == hardware
    assert profile_named(str(path)) == hardware


def test_the_fingerprint_changes_with_a_figure() -> None:
    data = json.loads(profile_named("h100").to_json())
    data.pop("format")
    changed = Hardware(**{**data, "matches": (), "launch_seconds": 1e-6})
    assert changed.fingerprint != profile_named("h100").fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2"),
        ({"bytes_per_second": None}, "bytes_per_second"),
        ({"bytes_per_second": 0}, "bytes_per_second"),
        ({"launch_seconds": True}, "launch_seconds"),
        ({"launch_seconds": "4 us"}, "launch_seconds"),
        ({"flops_per_second": {"bfloat16": 1e12}}, "float32"),
        ({"flops_per_second": 1e12}, "float32"),
        ({"attained": {"matmul": 1.0}}, "convolution"),
        ({"elements_per_second": {"random": 1e9}}, "transcendental"),
        ({"elements_per_second": {"transcendental": 1e9, "random": 1e9, "mask": 0}}, "mask"),
        ({"speed": 1}, "unknown field 'speed'"),
    ],
)
def test_a_bad_figure_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**json.loads(profile_named("cpu").to_json()), **change}))
    with pytest.raises(gcpass.OptionError, match=said) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "not JSON"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(gcpass.OptionError, match="not a hardware profile"):
        read_profile(path)


def test_a_missing_field_and_a_missing_file_are_named(tmp_path: Path) -> None:
    data = json.loads(profile_named("cpu").to_json())
    del data["attained"]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(gcpass.OptionError, match="lacks 'attained'"):
        read_profile(path)
    with pytest.raises(gcpass.OptionError, match="cannot be read"):
        profile_named(str(tmp_path / "none.json"))


def test_a_data_type_without_a_rate_has_that_of_the_next_wider() -> None:
    hardware = profile_named("a100-80")
    assert "float8" not in hardware.flops_per_second
    assert hardware.flop_rate("matmul", "float8") == hardware.flop_rate("matmul", "bfloat16")
    assert hardware.flop_rate("matmul", "int64") == hardware.flop_rate("matmul", "float32")


# -- which profile a device gets ------------------------------------------------------------------


def test_auto_is_the_devices_own_and_calibrated_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCPASS_CACHE", str(tmp_path))
    assert _prices.find_prices("auto", CPU).name == "cpu"
    path = _devices.calibrated_path(CPU)
    path.parent.mkdir(parents=True)
    data = {**json.loads(profile_named("cpu").to_json()), "name": "mine"}
    path.write_text(json.dumps(data))
    assert _prices.find_prices("auto", CPU).name == "mine"
    plan = gcpass.plan(lambda x: (x * x).sum(), (torch.randn(4, requires_grad=True),))
    assert plan.hardware == "mine"


def test_an_unknown_accelerator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prices, "device_name", lambda device: "Abacus 9000")
    with pytest.warns(UserWarning, match=r"Abacus 9000.*gcpass calibrate"):
        prices = _prices.find_prices("auto", torch.device("cuda"))
    assert prices.name == "h100"


def test_measuring_a_device_that_is_not_here_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(gcpass.OptionError, match="no CUDA device"):
        _prices.find_prices("measured", torch.device("cuda"))


def test_planning_for_a_named_device_rounds_to_its_allocators_blocks() -> None:
    data = torch.randn(3, 3, requires_grad=True)
    plans = [
        gcpass.plan(lambda x: (x @ x).sum(), (data,), hardware=h, codegen="eager")
        for h in ("reference", "h100")
    ]
    assert plans[1].predicted_peak_bytes % 512 == 0
    assert plans[0].predicted_peak_bytes < plans[1].predicted_peak_bytes


# -- measuring ------------------------------------------------------------------------------------


def test_calibrating_measures_every_figure_and_says_where_it_is() -> None:
    stages: list[str] = []
    hardware = calibrate(CPU, stages.append)
    assert len(stages) == len(set(stages)) == STAGES
    assert hardware.device == "cpu"
    assert set(hardware.flops_per_second) == {"float32", "float64", "bfloat16", "float16"}
    assert 1e9 < hardware.flops_per_second["float32"] < 1e14
    assert 1e8 < hardware.byte_rate < 1e13
    assert 1e-8 < hardware.launch_seconds < 1e-2
    assert set(hardware.elements_per_second) >= {"transcendental", "random", "fused_random"}
    assert all(1e6 < rate < 1e12 for rate in hardware.elements_per_second.values())


def test_without_a_compiler_the_loops_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", refuse)
    assert _calibrate._loop_rates(CPU, 16, 1e9) == {}
    assert "no C++ compiler" in caplog.text


def test_the_command_writes_a_profile_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.json"
    done = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "float32 matmul" in done.output
    hardware = read_profile(path)
    assert _prices.find_prices(str(path), CPU) == Roofline(hardware)


def test_the_command_writes_where_auto_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCPASS_CACHE", str(tmp_path))
    monkeypatch.setattr(_calibrate, "_loop_rates", lambda *_: {})  # it compiles for seconds
    done = CliRunner().invoke(app, ["calibrate", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert _prices.find_prices("auto", CPU).name == _devices.device_name(CPU)


def test_what_cannot_be_measured_or_written_is_told_first(tmp_path: Path) -> None:
    for arguments, said in (
        (["--device", "abacus"], "abacus"),
        (["--device", "cpu", "--out", str(tmp_path)], "cannot be written"),
    ):
        done = CliRunner().invoke(app, ["calibrate", *arguments])
        assert isinstance(done.exception, gcpass.OptionError)
        assert said in str(done.exception)

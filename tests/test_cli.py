"""The command line, run in this process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import gcpass
from gcpass import _cli
from gcpass._errors import GcpassError, OptionError
from gcpass._report._demo import DemoRecord, DemoRow, demo_table

STEP = """
import torch
from torch import nn

def step():
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU())])
    return (lambda x: model(x).square().mean()), (torch.randn(512, 64),)

def wrong():
    return 3
"""


def run(*arguments: object, code: int = 0) -> str:
    """What the command printed to standard output."""
    result = CliRunner().invoke(_cli.app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def fail(
    arguments: list[object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    code: int = 2,
) -> str:
    """The one line that `main` printed to standard error before it exited with ``code``."""
    monkeypatch.setattr(sys, "argv", ["gcpass", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        _cli.main()
    assert exit_.value.code == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "a_training_step.py"
    path.write_text(STEP)
    return path


def test_without_a_command_it_prints_the_help() -> None:
    assert run() == run("--help")
    assert "demo" in run() and "plan" in run()


def test_version() -> None:
    assert run("--version") == f"gcpass {gcpass.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gcpass", "--version"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"gcpass {gcpass.__version__}\n"


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, gcpass._cli\n"
        "try: gcpass._cli.app(['demo', '--help'])\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# -- plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", [[], ["--fake"]])
def test_plan_prints_the_summary_and_writes_the_plan(
    step: Path, tmp_path: Path, fake: list[str]
) -> None:
    out = tmp_path / "plan.json"
    options = ["--codegen", "eager", "--budget", "0.7", "--json", out, *fake]
    text = run("plan", f"{step}:step", *options)
    plan = gcpass.Plan.from_json(out.read_text())
    assert text == plan.summary() + "\n"
    assert plan.budget_bytes is not None and plan.predicted_peak_bytes <= plan.budget_bytes


def test_plan_finds_a_module_in_the_working_directory(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(step.parent)
    assert "policy full" in run("plan", f"{step.stem}:step", "--codegen=eager", "--policy=full")


def test_plan_takes_rules(step: Path) -> None:
    rules = ("--rule", "[024]=save", "--rule", "1=recompute")
    text = run("plan", f"{step}:step", "--codegen=eager", *rules)
    assert "[024]: save, 1: recompute" in text and "rules['[024]'] saves it" in text


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("{step}:step", ["--policy", "ful"], "'full'"),
        ("{step}:step", ["--codegen", "eagr"], "'eager'"),
        ("{step}:step", ["--rule", "mlp"], "PATTERN=save"),
        ("{step}:step", ["--rule", "mlp=keep"], "rules['mlp']='keep'"),
        ("{step}:step", ["--budget", "much"], "--budget"),
        ("{step}:step", ["--budget", "1KiB", "--codegen", "eager"], "below the smallest peak"),
        ("{step}:step", ["--json", "/nowhere/plan.json", "--codegen", "eager"], "/nowhere"),
        ("{step}:stap", [], "'step'"),
        ("{step}:wrong", [], "(fn, args)"),
        ("{step}", [], "MODULE:CALLABLE"),
        ("nowhere.py:step", [], "nowhere.py"),
        ("no_such_module.within:step", [], "no_such_module"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    target: str,
    options: list[object],
    said: str,
    step: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = 3 if said == "below the smallest peak" else 2
    line = fail(["plan", target.format(step=step), *options], capsys, monkeypatch, code)
    assert line.startswith("gcpass: error: ") and said in line


def test_what_the_users_module_lacks_is_the_users_error(tmp_path: Path) -> None:
    path = tmp_path / "imports_nothing.py"
    path.write_text("import no_such_module")
    with pytest.raises(ModuleNotFoundError):
        run("plan", f"{path}:step")


# -- a device ------------------------------------------------------------------------------------

TINY_MODEL = ("hf:tiny-gpt2", "--codegen=eager", "--hardware=h100")


def test_plan_on_a_device_says_whether_it_fits(tmp_path: Path) -> None:
    out = tmp_path / "estimate.json"
    text = run("plan", *TINY_MODEL, "--batch", 2, "--json", out)
    assert "No recomputation is needed" in text and len(text.splitlines()) < 30
    record = json.loads(out.read_text())
    assert record["fits"] and not record["needs_recomputation"]
    for column in record["columns"]:
        if column["available"]:
            heads = dict(column["heads"])
            assert heads.pop("total_nbytes") == sum(heads.values())


def test_plan_that_does_not_fit_exits_with_3_and_gives_advice() -> None:
    memory = ("--device-memory", "1MiB", "--reserve", "0", "--config", "n_embd=256")
    record = json.loads(run("plan", *TINY_MODEL, *memory, "--json", "-", code=3))
    assert not record["fits"] and record["largest_head"] in ("optimizer state", "weights")
    changes = [made["change"] for made in record["advice"]]
    assert changes and changes[0] == "--optimizer adamw8bit"


def test_plan_of_a_file_on_a_device_counts_its_model(step: Path) -> None:
    text = run("plan", f"{step}:step", "--codegen=eager", "--device-memory=1GiB", "--reserve=0")
    assert "optimizer state" in text and "Fits" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["plan", *TINY_MODEL, "--lora", "r=0"], "at least 1"),
        (["plan", *TINY_MODEL, "--zero", "4"], "--zero 4"),
        (["plan", *TINY_MODEL, "--device-memory", "80"], "80GiB"),
        (["plan", *TINY_MODEL, "--config", "n_embd=foo"], "not a number"),
        (["plan", *TINY_MODEL, "--budget", "1GiB"], "--budget"),
        (["plan", *TINY_MODEL, "--batch", "0"], "--batch 0"),
        (["plan", *TINY_MODEL, "--dtype", "bf61"], "'bf16'"),
        (["plan", *TINY_MODEL, "--reserve", "100GiB"], "--reserve"),
        (["plan", "hf:gtp2"], "did you mean 'gpt2'"),
        (["plan", "zoo:lama"], "'llama'"),
        (["frontier", "hf:gpt2"], "gcpass plan and gcpass fit build models by name"),
        (["plan", "a:b", "--device-memory", "1GiB", "--seq", "4"], "--seq"),
        (["plan", "a:b", "--zero", "3", "--world-size", "2"], "--zero says how a model trains"),
        (["plan", "a:b", "--sequence-parallel", "1"], "--sequence-parallel says how a model"),
        (["plan", "zoo:mlp:tiny", "--dtype", "bf16"], "--dtype is for models that gcpass builds"),
        (["fit", *TINY_MODEL, "--over", "batches"], "'batch'"),
        (["fit", *TINY_MODEL, "--batch", "2"], "leave it out"),
        (["fit", "a:b"], "hf:NAME"),
        (["fit", "hf:tiny-vit", "--over", "seq"], "takes images"),
    ],
)
def test_a_mistake_about_a_device_is_told_in_one_line(
    options: list[object],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    assert said in fail(options, capsys, monkeypatch)


# -- demo ---------------------------------------------------------------------------------------

TINY = ("--steps=2", "--timed-steps=2", "--layers=1", "--width=32", "--sequence=32")


def test_demo_writes_the_record_of_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcpass.fx import _demo

    monkeypatch.setattr(_demo, "_has_transformers", lambda: False)  # the built-in model is faster
    out = tmp_path / "demo.json"
    text = run("demo", "--quick", "--codegen", "eager", "--json", out, *TINY)
    record = json.loads(out.read_text())
    assert record["model"]["from"] == "gcpass"
    rows = record["rows"]
    assert [r["label"] for r in rows] == [c.label for c in _demo.QUICK_ROWS]
    for row in rows:
        assert row["label"] in text
        assert len(row["step_seconds"]) == len(row["losses"]) == 2
        assert row["measured_peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.05)
    free, bounded, _ = rows
    assert bounded["measured_peak_bytes"] < free["measured_peak_bytes"]
    assert bounded["losses"] == pytest.approx(free["losses"], rel=1e-5)


def test_a_row_whose_plan_has_a_note_gets_a_footnote() -> None:
    row = DemoRow("free", None, None, None, 100, 110, 1.0, (1.0, 3.0, 2.0), (5.0, 4.0))
    noted = DemoRow(
        "noted", 0.5, None, 50, None, 60, 1.0, (2.0, 3.0, 4.0), (5.0, 4.5), ("Oh [x]!",)
    )
    model = {"parameters": 1000, "batch": 1, "sequence": 2}
    record = DemoRecord({"device": "a CPU"}, model, "eager", 0, (row, noted))
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(demo_table(record))
    lines = console.export_text().splitlines()
    assert "¹ Oh [x]!" in lines
    (line,) = (line for line in lines if "noted" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["noted ¹", "50 B", "-", "60 B", "1.50x", "4.5000"]


def test_the_built_in_model_has_the_shape_of_transformers() -> None:
    from gcpass.fx import _demo

    pytest.importorskip("transformers")
    count = [
        sum(p.numel() for p in model.parameters())
        for model in (_demo._GPT2(_demo.QUICK), _demo._HuggingFaceGPT2(_demo.QUICK))
    ]
    assert count[0] == count[1]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from gcpass.fx import _demo

    monkeypatch.setattr(_demo.shutil, "which", lambda name: None)
    monkeypatch.setattr(_demo, "find_device", lambda: "cpu")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_demo_falls_back() -> None:
    chosen, said = _cli._demo._choose_codegen(None, "cpu")
    assert chosen == "eager"
    assert said is not None and "no C++ compiler" in said and "CXX" in said
    assert _cli._demo._choose_codegen("eager", "cpu") == ("eager", None)


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_inductor_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GcpassError, match="--codegen eager"):
        run("demo", "--codegen", "inductor")
    with pytest.raises(OptionError, match="eager"):
        run("demo", "--codegen", "eagr")


def test_without_triton_a_gpu_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "triton" else find(n))
    chosen, said = _cli._demo._choose_codegen(None, "cuda")
    assert chosen == "eager" and said is not None and "Triton" in said


def test_control_c_ends_it_without_a_trace() -> None:
    command = [sys.executable, "-c", "from gcpass._cli import main; main()", "demo"]
    options = ["--quick", "--codegen", "eager", "--steps", "1000"]
    process = subprocess.Popen(
        [*command, *options],
        stderr=subprocess.PIPE,
        text=True,
        # What runs in a shell's background ignores the signal, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said

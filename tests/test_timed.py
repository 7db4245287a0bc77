"""``hardware="measured"``: ops really run, once each, and their times kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gcpass
from gcpass.fx import _timed
from gcpass.fx._costs import Roofline
from gcpass.fx._prices import own_profile
from gcpass.fx._timed import Timed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCPASS_CACHE", str(tmp_path))


@pytest.fixture
def timed_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each op that is timed."""
    seen: list[int] = []
    original = _timed.all_seconds

    def counting(run: Callable[[], Any], device: torch.device, runs: int) -> list[float]:
        seen.append(runs)
        return original(run, device, runs)

    monkeypatch.setattr(_timed, "all_seconds", counting)
    return seen


def step(width: int = 16) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    return lambda x: model(x).square().sum(), (torch.randn(8, width),)


def plan(fn: Callable[..., Any], args: Any, **options: Any) -> gcpass.Plan:
    return gcpass.plan(fn, args, hardware="measured", codegen="eager", **options)


def test_each_distinct_op_is_timed_once(timed_runs: list[int]) -> None:
    fn, args = step()
    made = plan(fn, args)
    first = len(timed_runs)
    targets = {row.target for row in made.rows()}
    assert "aten.addmm" in targets
    assert 0 < first < 12  # four layers alike, their forward and their backward
    assert made.step_seconds > 0
    assert made.hardware.startswith("measured on")
    plan(*step())
    assert len(timed_runs) == first  # read from the file
    plan(*step(width=32))
    assert len(timed_runs) > first


def test_times_are_kept_with_the_versions_they_are_of(
    tmp_path: Path, timed_runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(*step())
    (file,) = (tmp_path / "ops").iterdir()
    record = json.loads(file.read_text())
    assert record["versions"] == {"torch": torch.__version__, "gcpass": gcpass.__version__}
    assert all(seconds > 0 for seconds in record["ops"].values())
    first = len(timed_runs)
    monkeypatch.setattr(_timed, "__version__", "0.0.0")
    plan(*step())
    assert len(timed_runs) == 2 * first


def test_a_broken_cache_is_made_again(tmp_path: Path, timed_runs: list[int]) -> None:
    plan(*step())
    (file,) = (tmp_path / "ops").iterdir()
    file.write_text(file.read_text()[:50])
    first = len(timed_runs)
    plan(*step())
    assert len(timed_runs) == 2 * first
    assert json.loads(file.read_text())["ops"]


def test_a_custom_op_is_priced_by_running_it() -> None:
    calls: list[tuple[int, ...]] = []

    @torch.library.custom_op("gcpass_test::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(x.shape))
        end = torch.zeros(())
        while end < 20:  # takes far longer than its bytes would
            end += 1
        return x.clone()

    slow.register_fake(torch.empty_like)
    slow.register_autograd(lambda ctx, grad: grad)
    x = torch.randn(8, 8, requires_grad=True)
    made = plan(lambda x: (slow(x) @ x).square().sum(), (x,))
    (row,) = (row for row in made.rows() if row.target == "gcpass_test.slow")
    assert calls
    assert set(calls) == {(8, 8)}
    modelled = UNKNOWN_SECONDS
    assert row.seconds > 2 * modelled
    assert made.notes == ()


UNKNOWN_SECONDS = 10 * 2 * 256 / 34e9 + 3e-6  # by the profile that gcpass brings


def test_what_cannot_be_run_alone_is_listed_and_modelled() -> None:
    @torch.library.custom_op("gcpass_test::picky", mutates_args=())
    def picky(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if not index.any():
            raise ValueError("made-up inputs")
        return x.clone()

    picky.register_fake(lambda x, index: torch.empty_like(x))
    picky.register_autograd(lambda ctx, grad: (grad, None))
    x = torch.randn(8, 8, requires_grad=True)
    made = plan(lambda x, i: (picky(x, i) @ x).square().sum(), (x, torch.ones(3, dtype=torch.long)))
    (note,) = made.notes
    assert "gcpass_test.picky" in note
    assert "ValueError" in note
    (row,) = (row for row in made.rows() if row.target == "gcpass_test.picky")
    assert row.seconds == pytest.approx(10 * (2 * 256 + 24) / 34e9 + 3e-6, rel=0.01)


def test_nothing_is_run_that_has_an_effect() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(4)
    node = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    node.meta["val"] = x.meta["val"]
    from gcpass.fx._call import call_of

    prices = Timed(Roofline(own_profile(CPU)), CPU)
    prices.seconds(call_of(node), None)
    assert x.meta["val"].sum() == 0
    (note,) = prices.finish()
    assert "aten.add_" in note


def test_loops_that_fuse_keep_the_price_of_their_traffic(timed_runs: list[int]) -> None:
    fn = lambda x: (x.sin() + 1).sum()
    gcpass.plan(fn, (torch.randn(64, requires_grad=True),), hardware="measured")
    assert timed_runs == []


def test_training_is_compiled_with_measured_prices() -> None:
    fn, args = step()
    compiled = torch.compile(
        fn, backend="gcpass", options={"hardware": "measured", "codegen": "eager"}
    )
    compiled(*args).backward()

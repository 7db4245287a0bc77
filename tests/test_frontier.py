"""``gcpass.frontier`` and ``gcpass frontier``: every useful plan, as data, text and picture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from typer.testing import CliRunner

import gcpass
from gcpass._cli import app
from gcpass._frontier import Frontier

DATA = torch.randn(64, 16)
LAYERS = [m for _ in range(8) for m in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
MODEL = torch.nn.Sequential(*LAYERS)


def loss(data: torch.Tensor) -> torch.Tensor:
    return MODEL(data).sum()


@pytest.fixture(scope="module")
def frontier() -> Frontier:
    return gcpass.frontier(loss, (DATA,), codegen="eager", points=12)


def test_every_point_is_smaller_and_slower_than_the_one_before(frontier: Frontier) -> None:
    assert 4 <= len(frontier.points) <= 12
    assert frontier.points[0].recompute_ratio == 0.0
    for a, b in pairwise(frontier.points):
        assert b.predicted_peak_bytes < a.predicted_peak_bytes
        assert b.recompute_seconds > a.recompute_seconds


def test_preferences_are_followed_as_far_as_they_go() -> None:
    """Down to the smallest peak of a plan under them; then plans that let go of them."""

    def preferring(data: torch.Tensor) -> torch.Tensor:
        x = MODEL[:8](data)
        return MODEL[8:](
            checkpoint(lambda x: torch.tanh(x).exp().sin(), x, use_reentrant=False)
        ).sum()

    points = gcpass.frontier(preferring, (DATA,), codegen="eager", points=12).points
    assert all(b.predicted_peak_bytes < a.predicted_peak_bytes for a, b in pairwise(points))
    followed = [any("is followed" in note for note in point.notes) for point in points]
    assert followed[0] and followed == sorted(followed, reverse=True)
    for point, follows in zip(points, followed, strict=True):
        inside = [r for r in point.rows() if r.target in ("aten.exp", "aten.sin")]
        assert not follows or all(row.decision == "recomputed" for row in inside)


def test_every_point_is_a_plan_that_fits_where_it_says(frontier: Frontier) -> None:
    for point in frontier.points:
        assert point.lower_bound_seconds <= point.recompute_seconds + 1e-15
        again = gcpass.plan(
            loss, (DATA,), memory_budget=point.predicted_peak_bytes, codegen="eager"
        )
        assert again.recompute_seconds <= point.recompute_seconds + 1e-15


def test_json_reads_back_what_it_wrote(frontier: Frontier) -> None:
    assert Frontier.from_json(frontier.to_json()) == frontier
    for text in ("{}", "[]", "x", '{"format": 99}'):
        with pytest.raises(gcpass.OptionError):
            Frontier.from_json(text)


@pytest.mark.parametrize("points", [1, 0, -3, 2.5, True, "many"])
def test_a_wrong_number_of_points_is_named(points: Any) -> None:
    with pytest.raises(gcpass.OptionError, match="points="):
        gcpass.frontier(loss, (DATA,), points=points)


def test_the_command_prints_draws_and_writes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "def step():\n"
        "    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16),"
        " torch.nn.Tanh()) for _ in range(6)])\n"
        "    return (lambda x: net(x).sum()), (torch.randn(64, 16),)\n"
    )
    out, picture = tmp_path / "frontier.json", tmp_path / "frontier.png"
    arguments = ["frontier", f"{script}:step", "--codegen=eager", "--points=6"]
    arguments += ["--against=none,full,torch:0.5", f"--json={out}", f"--plot={picture}"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    written = Frontier.from_json(out.read_text())
    assert result.stdout == written.summary() + "\n"
    assert [plan.policy for plan in written.others] == ["none", "full", "torch:0.5"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_named(frontier: Frontier, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from gcpass._report._frontier import draw_frontier

    for name in ("no such folder/x.png", "x.unknown"):
        with pytest.raises(gcpass.OptionError, match=name):
            draw_frontier(frontier, tmp_path / name)

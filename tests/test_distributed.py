"""Two processes that share a batch, under gloo: gradients are those of the same without gcpass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_PATIENCE_SECONDS = 240  # a rank whose peer died waits for it half an hour


@pytest.mark.parametrize(("kind", "graphs"), [("ddp", 2), ("fsdp", 2)])
def test_two_ranks(kind: str, graphs: int, tmp_path: Path) -> None:
    """DDP's buckets split a graph, FSDP's hooks break it: each part is planned, for one budget."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "_ranks.py"), kind, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=_PATIENCE_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(err[-3000:] for _, err in said)
    (line,) = [line for out, _ in said for line in out.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert found["losses"] == pytest.approx(found["expected"], rel=1e-9)
    assert found["differing"] == []
    assert found["plans"] >= graphs

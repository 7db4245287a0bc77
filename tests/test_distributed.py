"""Two processes that share a batch, under gloo: gradients are those of the same without gcpass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("kind", "graphs"), [("ddp", 2), ("fsdp", 2)])
def test_two_ranks(kind: str, graphs: int) -> None:
    """DDP's buckets split a graph, FSDP's hooks break it: each part is planned, for one budget."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    done = subprocess.run(
        [*command, "--standalone", str(TESTS / "_ranks.py"), kind],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert found["losses"] == pytest.approx(found["expected"], rel=1e-9)
    assert found["differing"] == []
    assert found["plans"] >= graphs

"""Warm compilation caches: another setting never gets this one's plan, the same one does."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gcpass
from gcpass.fx import _partitioner
from gcpass.fx._options import read_options
from gcpass.fx._partitioner import Partitioner
from gcpass.fx._prices import find_prices
from gcpass.policies import Policy, torch_policy

PROGRAM = """
import json, sys, torch
from torch._dynamo.utils import counters

def run(options):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(32, 32), torch.nn.GELU())]
    model, x = torch.nn.Sequential(*layers), torch.randn(1024, 32)
    step = torch.compile(lambda x: model(x).square().mean(), backend="gcpass", options=options)
    loss = step(x)
    leaves = {p.data_ptr() for p in model.parameters()} | {x.data_ptr()}
    saved = sum(t.nbytes for t in loss.grad_fn.saved_tensors if t.data_ptr() not in leaves)
    loss.backward()
    aot = counters["aot_autograd"]
    return {
        "saved": saved,
        "hits": aot["autograd_cache_hit"],
        "misses": aot["autograd_cache_miss"],
        "gradients": [p.grad.double().norm().item() for p in model.parameters()],
    }

print(json.dumps({name: run(options) for name, options in json.loads(sys.argv[1]).items()}))
"""

ROOMY: dict[str, Any] = {"memory_budget": "2MiB"}
TIGHT: dict[str, Any] = {"memory_budget": "1KiB", "on_infeasible": "best"}
FULL: dict[str, Any] = {**ROOMY, "policy": "full"}
SOLVER: dict[str, Any] = {**ROOMY, "solver": "segments"}


def _process(cache: Path, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    environment.pop("GCPASS_BUDGET", None)
    environment.pop("GCPASS_REPORT", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(settings)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.inductor
def test_processes_that_share_a_warm_cache(tmp_path: Path) -> None:
    first = _process(tmp_path, {"roomy": ROOMY})["roomy"]
    assert (first["hits"], first["misses"]) == (0, 1)

    second = _process(tmp_path, {"tight": TIGHT, "full": FULL, "solver": SOLVER})
    for name, got in second.items():
        assert (got["hits"], got["misses"]) == (0, 1), name
        assert got["gradients"] == pytest.approx(first["gradients"], rel=1e-5)
    assert second["tight"]["saved"] < first["saved"]
    assert second["full"]["saved"] < first["saved"]
    assert second["solver"]["saved"] == first["saved"]

    third = _process(tmp_path, {"roomy": ROOMY, "tight": TIGHT})
    for got, before in ((third["roomy"], first), (third["tight"], second["tight"])):
        assert (got["hits"], got["misses"]) == (1, 0)
        assert got["saved"] == before["saved"]
        assert got["gradients"] == pytest.approx(before["gradients"], rel=1e-6)


# -- the cache key, without compiling ----------------------------------------------------------


def _uuid(options: dict[str, Any]) -> str:
    checked = read_options(options)
    prices = find_prices(checked.hardware, torch.device("cpu"))
    uuid = Partitioner(checked, prices, None).uuid()
    assert isinstance(uuid, str)
    return uuid


SETTINGS: list[dict[str, Any]] = [
    {},
    {"memory_budget": "1MiB"},
    {"memory_budget": 2**20 + 1},
    {"memory_budget": 1.0},
    {"memory_budget": 0.5},
    {"memory_budget": 1},
    {"policy": "none"},
    {"policy": "full"},
    {"policy": "torch"},
    {"policy": "torch:0.5"},
    {"policy": "torch:0.25"},
    {"rules": {"layers.*": "save", "layers.0": "recompute"}},
    {"rules": {"layers.*": "recompute", "layers.0": "save"}},
    {"rules": {"layers.0": "recompute", "layers.*": "save"}},
    {"solver": "segments"},
    {"hardware": "reference"},
    {"hardware": "h100"},
    {"hardware": "measured"},
    {"on_infeasible": "best"},
    {"codegen": "eager"},
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCPASS_BUDGET", raising=False)
    monkeypatch.delenv("GCPASS_REPORT", raising=False)


def test_every_setting_has_its_own_uuid() -> None:
    uuids = [_uuid(options) for options in SETTINGS]
    assert len(set(uuids)) == len(SETTINGS)
    assert uuids == [_uuid(options) for options in SETTINGS]


def test_the_same_setting_written_otherwise_has_the_same_uuid() -> None:
    assert _uuid({"memory_budget": "1MiB"}) == _uuid({"memory_budget": 2**20})
    assert _uuid({"policy": "torch"}) == _uuid({"policy": torch_policy(1.0)})


def test_a_report_does_not_change_the_uuid() -> None:
    assert _uuid({"report": "plan.json"}) == _uuid({})


def test_close_settings_have_their_own_uuids() -> None:
    """What is printed alike need not be alike."""
    assert _uuid({"memory_budget": 0.1234567}) != _uuid({"memory_budget": 0.1234568})
    assert _uuid({"policy": "torch:0.1234567"}) != _uuid({"policy": "torch:0.1234568"})


def _keeps_some(problem: Any) -> frozenset[int]:
    return frozenset()


def _keeps_more(problem: Any) -> frozenset[int]:
    return frozenset()


def _at_least(nbytes: int) -> Policy:
    def choose(problem: Any) -> frozenset[int]:
        kept = problem.kept_storage.items()
        return frozenset(op for op, s in kept if problem.storages[s].nbytes >= nbytes)

    return Policy("at_least", choose)


def test_own_policies_of_one_name() -> None:
    one, other = Policy("mine", _keeps_some), Policy("mine", _keeps_more)
    assert _uuid({"policy": one}) != _uuid({"policy": other})
    assert _uuid({"policy": one}) == _uuid({"policy": Policy("mine", _keeps_some)})


def test_own_policies_that_differ_in_a_closure() -> None:
    """Two functions of one qualified name that keep different values."""
    assert _uuid({"policy": _at_least(1)}) != _uuid({"policy": _at_least(2**20)})


def test_an_edited_policy_of_one_name() -> None:
    """The user's file is edited between two runs: the name stays, the code does not."""
    made = []
    for body in ("frozenset()", "frozenset(problem.kept_storage)"):
        namespace: dict[str, Any] = {"__name__": "users_module"}
        exec(f"def choose(problem):\n    return {body}\n", namespace)
        made.append(Policy("mine", namespace["choose"]))
    assert _uuid({"policy": made[0]}) != _uuid({"policy": made[1]})


def test_a_policy_that_is_not_a_plain_function() -> None:
    """A partial has no qualified name; it is a policy all the same."""
    assert _uuid({"policy": Policy("mine", functools.partial(_keeps_some))}) != _uuid({})


def test_a_policy_that_is_an_object_is_known_again() -> None:
    """The graphs of one model, compiled one by one, are told that they share a budget by it."""
    one, other = functools.partial(_keeps_some), functools.partial(_keeps_some)
    assert _uuid({"policy": Policy("mine", one)}) == _uuid({"policy": Policy("mine", one)})
    assert _uuid({"policy": Policy("mine", one)}) != _uuid({"policy": Policy("mine", other)})


def test_versions_and_source_change_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {_uuid({})}
    for name in ("gcpass", "torch"):
        with monkeypatch.context() as patch:
            patch.setitem(_partitioner.VERSIONS, name, "0.0.0")
            before.add(_uuid({}))
    with monkeypatch.context() as patch:
        patch.setattr(_partitioner, "_source_digest", lambda: "edited")
        before.add(_uuid({}))
    assert len(before) == 4


def test_marked_regions_change_the_uuid() -> None:
    checked, prices = read_options({}), find_prices("reference", torch.device("cpu"))
    uuids = {Partitioner(checked, prices, None, regions).uuid() for regions in ("", "one", "two")}
    assert len(uuids) == 3


def test_a_stored_plan_changes_the_uuid() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    plan = gcpass.plan(model, (x,), codegen="eager")
    other = dataclasses.replace(plan, kept=(*plan.kept, "more"))
    assert len({_uuid({}), _uuid({"plan": plan}), _uuid({"plan": other})}) == 3

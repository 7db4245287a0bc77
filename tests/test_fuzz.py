"""Random programs train as eager does, within what was planned; and the fuzz finds planted bugs.

`PROGRAMS` programs, half of them in `test_fuzz_more.py`, for a file stays in one worker.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from _oracle import FLOOR, Verdict, gcpass, judge
from cases import CASES
from fuzz import (
    Fault,
    Program,
    Setting,
    Step,
    case_source,
    draw,
    find_fault,
    settings,
    shrunk,
    source,
)
from fuzz._judge import HELD

from gcpass.fx import _analyze, _constraints

PROGRAMS = 500  # about a CPU second each; the script runs any number
pytestmark = pytest.mark.filterwarnings("ignore")
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(seed: int) -> None:
    """One program under one setting."""
    program = draw(seed)
    (setting,) = settings(seed)[1:]
    fault = find_fault(program, [setting])
    assert fault is None, f"{fault}\n{source(program)}"


@pytest.mark.parametrize("seed", range(0, PROGRAMS, 2))
def test_a_random_program_is_right(seed: int) -> None:
    check(seed)


# -- does it find what is wrong? -------------------------------------------------------------------


def _draws_again(patch: Patch) -> None:
    """A random op is run again, and draws other numbers."""
    patch.setattr(_constraints, "is_random", lambda node: False)


def _reads_late(patch: Patch) -> None:
    """An input that the forward overwrites is read again in the backward."""
    patch.setattr(_analyze, "clone_mutated_inputs", lambda joint: None)
    patch.setattr(_analyze, "mutated_inputs", lambda joint: set())


def _counts_half(patch: Patch) -> None:
    """Values are taken for half as large as they are."""
    nbytes = _analyze.block_nbytes
    patch.setattr(_analyze, "block_nbytes", lambda value: nbytes(value) // 2)
    patch.setattr(_analyze, "result_nbytes", lambda node, value: nbytes(value) // 2)


def _first_fault(kind: str) -> tuple[Program, Fault]:
    """The first fault of a kind among programs that are right without the bug."""
    for seed in range(100):
        program = draw(seed)
        fault = find_fault(program, [Setting(FLOOR)])
        if fault is not None and fault.kind == kind:
            return program, fault
    raise AssertionError("100 programs show nothing")


@pytest.mark.parametrize(
    ("plant", "kind", "text"),
    [
        (_draws_again, "values", ("rand", "dropout", "bernoulli", "exponential_", "attention")),
        (_reads_late, "values", ("_(", "] =", "] *=")),
        (_counts_half, HELD, ("",)),
    ],
)
def test_a_planted_bug_is_found_and_made_small(
    plant: Callable[[Patch], None], kind: str, text: tuple[str, ...], monkeypatch: Patch
) -> None:
    """Few steps are left, the culprit among them, and they are right once the bug is out."""
    with monkeypatch.context() as patch:
        plant(patch)
        small, fault = shrunk(*_first_fault(kind))
    assert fault.kind == kind
    assert len(small.steps) <= 4
    assert any(culprit in source(small) for culprit in text)
    assert find_fault(small, [fault.setting]) is None


def test_a_fault_is_written_as_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case that is written is one of `tests/cases`, and says what it was found under."""
    program = Program(
        (
            Step(("v0",), "torch.tanh({0} @ {1})", ("x", "w"), (1,)),
            Step(("v1",), "dropout({0}, 0.3)", ("v0",), (1,)),
            Step((), "{0}.mul_(0.5).add_({1}.detach().mean())", ("s", "v1")),
            Step(("loss",), "({0} * {1}.sin()).square().mean()", ("v1", "s")),
        ),
        ("loss",),
    )
    text = case_source(program, Fault(Setting(0.5), "values", "wrong"), "written")
    spec = importlib.util.spec_from_loader("cases.written", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cases.written", module)  # Dynamo looks for it there
    known = list(CASES)
    try:
        exec(compile(text, str(tmp_path / "written.py"), "exec"), module.__dict__)
        (case,) = CASES[len(known) :]
    finally:
        CASES[:] = known
    assert case.name == "written" and "budget=0.5" in (case.body.__doc__ or "")
    for budget in (None, FLOOR):
        judged = judge(case, gcpass(budget))
        assert judged.verdict is Verdict.RIGHT, judged.why


def test_the_same_seed_draws_the_same_program() -> None:
    assert draw(7) == draw(7) != draw(8)
    assert settings(7) == settings(7)

"""Every case, at every budget: right gradients, the budget kept, effects once."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
from _oracle import BUDGETS, Judged, System, Verdict, gcpass, judge, judge_run, perform
from cases import CASES, Case, Run

NAMED = {f"{case.kind.replace(' ', '_')}-{case.name}": case for case in CASES}


@cache
def _unbounded(name: str) -> tuple[System, Run] | None:
    """What runs without a budget, and the run; None where it fails, which its own test tells."""
    system = gcpass(None)
    try:
        return system, perform(NAMED[name], system, weigh=True)
    except Exception as error:
        warnings.warn(f"{name}: {error}", stacklevel=1)
        return None


def _judged(name: str, budget: float | str | None) -> Judged:
    case, first = NAMED[name], _unbounded(name)
    if first is not None and budget is None:
        return judge_run(case, *first)
    return judge(case, gcpass(budget), first[1] if first is not None and case.weighs else None)


def _expect(case: Case, judged: Judged) -> None:
    if judged.verdict is Verdict.REFUSED and case.may_refuse:
        return
    assert judged.verdict is Verdict.RIGHT, f"{judged.verdict.value}: {judged.why}"


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_case(name: str, budget: float | str | None, request: pytest.FixtureRequest) -> None:
    case = NAMED[name]
    if case.torch_fault:
        request.applymarker(pytest.mark.xfail(reason=case.torch_fault, strict=True))
    _expect(case, _judged(name, budget))


INDUCTOR = (
    "scale_bumped_after_use",
    "dropout_in_a_checkpointed_region",
    "dequantised_weights",
    "skip_connections_across_the_whole",
    "split_with_contradicting_items",
    "all_gather_in_a_checkpointed_region",
    "unbacked_choice_of_computed_rows",
    "outputs_without_gradient",
    "cond",
    "a_quantised_weight_as_a_subclass",
    "top_k_routing",
)


@pytest.mark.inductor
@pytest.mark.parametrize("name", INDUCTOR)
def test_case_under_inductor(name: str) -> None:
    """One of each kind, at half the memory."""
    (case,) = (c for c in CASES if c.name == name)
    _expect(case, judge(case, gcpass(0.5, "inductor")))


def test_inductor_sees_every_kind() -> None:
    assert {c.kind for c in CASES if c.name in INDUCTOR} == {c.kind for c in CASES}


def test_every_name_is_there_once() -> None:
    assert len({case.name for case in CASES}) == len(NAMED) == len(CASES)

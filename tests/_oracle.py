"""Judges a case under a system: right, wrong or refused.

Right is: all that the case sees is eager's, its identities hold, no step holds more than the plan
predicts, no plan more than its budget (or it says that no plan does), and a budget does not raise
the peak.
"""

from __future__ import annotations

import contextlib
import enum
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch._dynamo.utils
from _searching import searching_little
from cases import Case, Run
from torch._functorch import config as functorch_config

from gcpass import Plan
from gcpass._explain import Row
from gcpass.fx._backend import compile_graph
from gcpass.fx._measure import cpu_peak_bytes
from gcpass.fx._options import read_options

FLOOR = "floor"
BUDGETS: tuple[float | str | None, ...] = (None, 0.9, 0.7, 0.5, FLOOR)
STOCK = "aot_eager_decomp_partition"
SLACK_NBYTES = 4096  # of a step's peak: numbers, in no plan
_STATE_NBYTES = 5_056  # of a stream of random numbers on the CPU: one for each op replayed, and
# while one of them is, that of the stream that is left
_RANDOM = ("rand", "normal", "bernoulli", "exponential", "rrelu", "multinomial", "dropout")


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"


@dataclass(frozen=True)
class Judged:
    """A verdict, and what speaks for it where it is not right."""

    verdict: Verdict
    why: str = ""


@dataclass
class System:
    """Something that compiles.

    Attributes:
        name: for messages.
        compiler: as `Run.compiler`.
        around: what a whole run stands in.
        plans: every plan made; empty for systems that have none.
        budget: what it compiles for.
    """

    name: str
    compiler: Callable[..., Any]
    around: Callable[[], contextlib.AbstractContextManager[Any]]
    plans: list[Plan]
    budget: float | str | None = None


def eager() -> System:
    return System("eager", lambda fn, **_: fn, contextlib.nullcontext, [])


def gcpass(budget: float | str | None, codegen: str = "eager", **options: Any) -> System:
    plans: list[Plan] = []
    checked = read_options(
        {
            "codegen": codegen,
            "memory_budget": 1 if budget == FLOOR else budget,
            "on_infeasible": "best",
            "strict": True,
            **options,
        }
    )

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_graph(gm, inputs, checked, plans.append)

    def compiler(fn: Any, **compile_options: Any) -> Any:
        return torch.compile(fn, backend=backend, **compile_options)

    return System(f"gcpass at {budget}", compiler, searching_little, plans, budget)


def stock(budget: float) -> System:
    """torch's own partitioner."""

    def compiler(fn: Any, **compile_options: Any) -> Any:
        return torch.compile(fn, backend=STOCK, **compile_options)

    def around() -> contextlib.AbstractContextManager[Any]:
        return functorch_config.patch(activation_memory_budget=budget)

    return System(f"torch at {budget}", compiler, around, [])


def perform(case: Case, system: System, *, weigh: bool = False) -> Run:
    """Run a case from a fresh start."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = Run(system.compiler, cpu_peak_bytes if weigh and case.weighs else None)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(case.dtype)
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), system.around():
            warnings.simplefilter("ignore")
            case.body(run)
    finally:
        torch.set_default_dtype(dtype)
    return run


def judge(case: Case, system: System, unbounded: Run | None = None) -> Judged:
    """Run a case and compare it with what is right.

    Args:
        case: the case.
        system: what to run it under.
        unbounded: the run without a budget, whose peaks a budget must not exceed.

    Returns:
        The verdict.
    """
    try:
        run = perform(case, system, weigh=unbounded is not None)
    except Exception as error:
        return Judged(Verdict.REFUSED, f"{type(error).__name__}: {_first_lines(error)}")
    return judge_run(case, system, run, unbounded)


def judge_run(case: Case, system: System, run: Run, unbounded: Run | None = None) -> Judged:
    """The same for a run that has been performed."""
    faults = [*_differences(case, run), *_broken_promises(run, system, unbounded)]
    return Judged(Verdict.WRONG, "; ".join(faults)) if faults else Judged(Verdict.RIGHT)


def _differences(case: Case, run: Run) -> Iterator[str]:
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if run.coarse else _tolerance(case.dtype)
    for name, got, right in run.agreed:
        yield from _compare(name, got, right, tolerance)
    if case.like_eager:
        expected = _eagerly(case)
        if [n for n, _ in expected] != [n for n, _ in run.seen]:
            yield "it did not see what eager sees"
        for (name, got), (_, right) in zip(run.seen, expected, strict=False):
            yield from _compare(name, got, right, tolerance)


@cache
def _eagerly(case: Case) -> list[tuple[str, Any]]:
    """What a case sees under eager."""
    return perform(case, eager()).seen


def _compare(name: str, got: Any, right: Any, tolerance: Mapping[str, float]) -> Iterator[str]:
    try:
        torch.testing.assert_close(got, right, equal_nan=True, **tolerance)
    except AssertionError as error:
        yield f"{name}: {_first_lines(error)}"


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}


def _broken_promises(run: Run, system: System, unbounded: Run | None) -> Iterator[str]:
    for plan in system.plans:
        over = plan.budget_bytes is not None and plan.predicted_peak_bytes > plan.budget_bytes
        if over and not plan.notes:
            yield f"a plan holds {plan.predicted_peak_bytes} of {plan.budget_bytes} bytes"
    if len(system.plans) == 1:
        predicted = system.plans[0].predicted_peak_bytes
        replayed = _count_replayed(system.plans[0])
        slack = SLACK_NBYTES + _STATE_NBYTES * (replayed + 1 if replayed else 0)
        if run.peaks and max(run.peaks) > predicted * 1.01 + slack:
            yield f"{max(run.peaks)} bytes were held, and {predicted} predicted"
    for plan in system.plans:
        yield from _broken_rules(run, plan, system.budget)
    if unbounded is not None and run.peaks and unbounded.peaks:
        before = max(unbounded.peaks)
        if max(run.peaks) > before * 1.02 + SLACK_NBYTES:
            yield f"the budget raises the peak from {before} to {max(run.peaks)} bytes"


def _count_replayed(plan: Plan) -> int:
    """How many random ops run again on the same numbers, as the user's checkpointing asks."""
    return sum(_is_replayed(row) for row in plan.rows())


def _is_replayed(row: Row) -> bool:
    return row.decision == "recomputed" and any(name in row.target for name in _RANDOM)


def _broken_rules(run: Run, plan: Plan, budget: float | str | None) -> Iterator[str]:
    for bound in run.floor_bounds if budget == FLOOR else ():
        if plan.predicted_peak_bytes > bound:
            yield f"the smallest peak is {plan.predicted_peak_bytes}, where {bound} would do"
    for bound in run.kept_bounds if budget == FLOOR else ():
        if plan.saved_bytes > bound:
            yield f"{plan.saved_bytes} bytes are kept, where {bound} would do"
    for is_meant, every in run.decisions:
        meant = [row for row in plan.rows() if is_meant(row.target)]
        if every and not meant:
            yield "no op of the plan is meant"
        for row in meant:
            if (row.decision == "kept") is not every:
                yield f"{row.op} is {row.decision}"


def _first_lines(error: BaseException) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:6] if line.strip())[:300]

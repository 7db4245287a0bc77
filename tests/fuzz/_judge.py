"""What a program is run under, and the verdict on it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _oracle import FLOOR, Judged, System, Verdict, gcpass, judge, perform, stock
from cases import Case, Run
from cases._trained import train

from fuzz._program import Program, function

BUDGETS = (None, 0.9, 0.7, 0.5, 0.3, FLOOR)
NAMED = (
    "none",
    "full",
    "per_block",
    "every_k:2",
    "sqrt",
    "selective_attention",
    "sac_matmul",
    "sac_matmul:2",
)
HELD, RAISED, OVER = "bytes were held", "budget raises", "a plan holds"  # in what an oracle says


@dataclass(frozen=True)
class Rule:
    """A policy that says of each value what its name's digits say, under a salt."""

    salt: int

    def __call__(self, row: Any) -> str | None:
        digits = int("".join(c for c in row.op if c.isdigit()) or 0)
        return ("save", "recompute", None, None)[(digits * 7 + self.salt) % 4]


@dataclass(frozen=True)
class Setting:
    """What a program is compiled for.

    Attributes:
        budget: a fraction, `FLOOR`, or None.
        policy: a policy's name, a `Rule`, or None.
        solver: a solver's name.
    """

    budget: float | str | None = None
    policy: str | Rule | None = None
    solver: str = "auto"

    def system(self) -> System:
        return gcpass(self.budget, policy=self.policy, solver=self.solver)


def draw_setting(rng: random.Random) -> Setting:
    """A random setting; the optimiser more often than not."""
    budget = rng.choice((*BUDGETS, round(rng.uniform(0.1, 1), 2)))
    policy = rng.choice((None, None, None, rng.choice(NAMED), Rule(rng.randrange(100))))
    return Setting(budget, policy, rng.choice(("auto", "auto", "segments")))


def settings(seed: int, count: int = 2) -> list[Setting]:
    """What the program of a seed is compiled for: first without a bound."""
    rng = random.Random(f"settings {seed}")
    return [Setting(), *(draw_setting(rng) for _ in range(count - 1))]


@dataclass(frozen=True)
class Fault:
    """Why a program is not right.

    Attributes:
        setting: what it was compiled for.
        kind: what shrinking must not change: the exception's type, or what is wrong.
        why: in words.
    """

    setting: Setting
    kind: str
    why: str


def find_fault(program: Program, tried: list[Setting]) -> Fault | None:
    """The first setting under which a program is not right; None where torch refuses it, too."""
    case = as_case(program)
    unbounded: Run | None = None
    for setting in tried:
        bounds = setting.policy is None and unbounded is not None
        judged = judge(case, setting.system(), unbounded if bounds else _nothing())
        if judged.verdict is not Verdict.RIGHT:
            fault = Fault(setting, _kind(judged), judged.why)
            return None if _is_torchs(case, fault) else fault
        if setting == Setting() and len(tried) > 1:
            unbounded = perform(case, setting.system(), weigh=True)
    return None


def as_case(program: Program) -> Case:
    return Case("fuzz", "fuzz", partial(_body, program), False, torch.float64, False, True, "")


def _body(program: Program, run: Run) -> None:
    train(run, function(program))


def _nothing() -> Run:
    """A run to compare with that weighed nothing."""
    return Run(lambda fn, **_: fn)


def _kind(judged: Judged) -> str:
    if judged.verdict is Verdict.REFUSED:
        return judged.why.split(":")[0]
    first = judged.why.split("; ")[0]
    for kind in (HELD, RAISED, OVER):
        if kind in first:
            return kind
    return "result" if first.startswith("result") else "values"


def _is_torchs(case: Case, fault: Fault) -> bool:
    """Whether plain compilation without gcpass refuses a program, or draws other numbers than eager
    (it removes random ops that nobody reads)."""
    if fault.kind in (HELD, RAISED, OVER, "values"):
        return False
    judged = judge(case, stock(1.0))
    if fault.kind == "result":
        return judged.verdict is Verdict.WRONG and _kind(judged) == "result"
    return judged.verdict is Verdict.REFUSED and "modified by an inplace" not in judged.why

"""The user's preferences (`PREFER_SAVE`, `PREFER_RECOMPUTE`): rules as long as the budget allows.

Plain `torch.utils.checkpoint` prefers to recompute all of its region. So a plan is made under all
preferences first; only if none of those keeps the budget, without any of them. Where none of these
does, either, the smaller of the two smallest peaks counts: a checkpointed region draws its random
numbers again, from the same stream, and what may be recomputed there is kept without it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gcpass._budget import NO_BUDGET, Budget
from gcpass._errors import InfeasibleBudget, UnsupportedGraph
from gcpass._evaluate import Evaluator
from gcpass._plan import Plan
from gcpass._planning import Request, resolve_budget
from gcpass._problem import Rule
from gcpass.fx._analyze import Analysis
from gcpass.fx._ruling import naming_rules

T = TypeVar("T")

_HONOURED = "the user's checkpointing is followed for {} values that it would rather {}"
_LET_GO = "the user's checkpointing preferences are not followed: no such plan keeps the budget"


def honouring(analysis: Analysis, request: Request, plan: Callable[[Analysis, Request], T]) -> T:
    """What ``plan`` makes of a graph under the user's preferences, if it keeps the budget so.

    Args:
        analysis: of the graph.
        request: what is asked for; a fraction is of the fastest plan without any preference.
        plan: plans an analyzed graph.

    Returns:
        The plan, whose notes say what became of the preferences.

    Raises:
        InfeasibleBudget: no plan keeps the budget, and the request says to raise.
    """
    with naming_rules(analysis):
        return _honouring(analysis, request, plan)


def _honouring(analysis: Analysis, request: Request, plan: Callable[[Analysis, Request], T]) -> T:
    preferring = analysis.preferring()
    if preferring is None:
        return plan(analysis, request)
    if request.budget != NO_BUDGET:
        nbytes = resolve_budget(Evaluator(analysis.problem), request)
        request = replace(request, budget=Budget(nbytes=nbytes))
    within = replace(request, on_infeasible="error")
    followed, let_go = _noted(preferring, *_said(analysis)), _noted(analysis, _LET_GO)
    try:
        return plan(followed, within)
    except UnsupportedGraph:
        return plan(let_go, request)
    except InfeasibleBudget as infeasible:
        if not _draws_again(analysis):
            return plan(let_go, request)
        floor = infeasible.floor_bytes
    try:
        return plan(let_go, within)
    except InfeasibleBudget as infeasible:
        return plan(followed if floor < infeasible.floor_bytes else let_go, request)


def _draws_again(analysis: Analysis) -> bool:
    """Whether the preferences recompute what must not be recomputed without them."""
    return any(
        op.preference is not None
        and op.preference.rule is Rule.NEVER_KEEP
        and op.constraint is not None
        and op.constraint.rule is Rule.NEVER_RECOMPUTE
        for op in analysis.problem.ops
    )


def preferred_first(analysis: Analysis, plans: Callable[[Analysis], list[Plan]]) -> list[Plan]:
    """A graph's plans under the user's preferences, and below their smallest peak those without.

    Args:
        analysis: of the graph.
        plans: an analyzed graph's plans, from the largest peak to the smallest.
    """
    preferring, found = analysis.preferring(), list[Plan]()
    if preferring is not None:
        with contextlib.suppress(UnsupportedGraph):  # preferences that contradict each other
            found = plans(_noted(preferring, *_said(analysis)))
        analysis = _noted(analysis, _LET_GO)
    smallest = found[-1].predicted_peak_bytes if found else math.inf
    return [*found, *(p for p in plans(analysis) if p.predicted_peak_bytes < smallest)]


def _said(analysis: Analysis) -> list[str]:
    rules = [op.preference.rule for op in analysis.problem.ops if op.preference is not None]
    counts = {rule: rules.count(rule) for rule in dict.fromkeys(rules)}
    return [
        _HONOURED.format(count, "save" if rule.name == "KEEP" else "recompute")
        for rule, count in counts.items()
    ]


def _noted(analysis: Analysis, *notes: str) -> Analysis:
    return replace(analysis, notes=(*analysis.notes, *notes))

"""Planning against what Inductor will really run.

The planner's model of fusion is good to a few percent; a budget is a promise. So before a plan is
used, Inductor lowers and schedules its two graphs (no code is generated) and says what they will
hold. A plan over the budget is made again for a budget smaller by the excess; one that leaves much
unused, for one larger by what it leaves. The number of rounds is bounded, and the plan says how
many there were. The count must leave `UNCOUNTED` of the budget free: on the zoo, library calls
were measured to allocate up to that much that Inductor does not know of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import fx

from gcpass._budget import Budget
from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator
from gcpass._planning import Planned, Request, infeasible_message, make_plan, resolve_budget
from gcpass.fx import _compat, _meta
from gcpass.fx._analyze import Analysis
from gcpass.fx._graphs import copy_graph
from gcpass.fx._lower import lower

ROUNDS = 3
UNCOUNTED = 0.03  # of the count: copies inside library calls, which Inductor does not see
_UNUSED = 0.08  # of the budget left over before a larger one is tried


@dataclass(frozen=True)
class Checked:
    """A plan, its graphs, and the peak that Inductor will reach with them."""

    planned: Planned
    modules: tuple[fx.GraphModule, fx.GraphModule]
    peak_bytes: int


def plan_checked(
    analysis: Analysis,
    evaluator: Evaluator,
    request: Request,
    versions: dict[str, str],
    static_lifetime_input_indices: list[int] | None,
) -> Checked:
    """The plan with the least recomputation whose peak, by Inductor's count, is within the budget.

    Raises:
        InfeasibleBudget: no round's plan is, and the request says to raise.
    """
    budget = resolve_budget(evaluator, request)
    assert budget is not None

    def attempt(target: int, on_infeasible: str) -> Checked:
        asked = replace(request, budget=Budget(nbytes=max(target, 1)), on_infeasible=on_infeasible)
        planned = make_plan(evaluator, asked, versions=versions, warn=False)
        modules = lower(analysis, planned.kept, planned.evaluation, static_lifetime_input_indices)
        return Checked(planned, modules, _peak_bytes(analysis, evaluator, planned, modules))

    tried = _search(attempt, int(budget / (1 + UNCOUNTED)))
    fitting = [c for c in tried if c.peak_bytes * (1 + UNCOUNTED) <= budget]
    if fitting:
        best = min(fitting, key=_recompute)
    else:
        tried.append(attempt(1, "best"))  # the smallest peak by the planner's own count
        best = min(tried, key=lambda c: c.peak_bytes)
    notes = (f"the peak is Inductor's own count (plans counted: {len(tried)})",)
    if best.peak_bytes > budget:
        floor = replace(best.planned.evaluation.peak, nbytes=best.peak_bytes)
        message = infeasible_message(budget, floor)
        if request.on_infeasible == "error":
            raise InfeasibleBudget(message, budget_bytes=budget, floor_bytes=best.peak_bytes)
        warnings.warn(f"gcpass: {message} Going on with the smallest peak.", stacklevel=2)
        notes = (message, *notes)
    plan = replace(
        best.planned.plan,
        budget_bytes=budget,
        predicted_peak_bytes=best.peak_bytes,
        notes=notes,
    )
    return replace(best, planned=replace(best.planned, plan=plan))


def _search(attempt: Callable[[int, str], Checked], budget: int) -> list[Checked]:
    """The plans tried for a budget, every one counted."""
    tried: list[Checked] = []
    target, exceeded = budget, False
    while len(tried) < ROUNDS:
        try:
            tried.append(attempt(target, "error"))
        except InfeasibleBudget:
            break
        excess = tried[-1].peak_bytes - budget
        if excess > 0:
            if any(c.peak_bytes <= budget for c in tried):
                break
            exceeded = True
            target -= excess + budget // 200
        elif exceeded or not _recompute(tried[-1]) or -excess < _UNUSED * budget:
            break
        else:
            target -= excess
    return tried


def _recompute(checked: Checked) -> int:
    return checked.planned.evaluation.recompute_picoseconds


def _peak_bytes(
    analysis: Analysis,
    evaluator: Evaluator,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
) -> int:
    """Inductor's count, with what it leaves out: tangents and outputs that the caller holds."""
    ahead = _count(modules[0], is_backward=False, visible=analysis.num_fwd_outputs)
    back = _count(modules[1], is_backward=True, visible=0)
    if ahead is None or back is None:
        return planned.evaluation.peak_nbytes
    problem = analysis.problem
    tangents = {
        s
        for op in problem.backward_range
        if problem.ops[op].target == "tangent"
        for s in problem.produced[op]
    }
    outputs = problem.output_storages - {
        problem.kept_storage[k] for k in planned.kept if k in problem.kept_storage
    }
    held = sum(problem.storages[s].nbytes for s in tangents | outputs)
    return max(ahead, back + held, planned.evaluation.saved_nbytes)


def _count(module: fx.GraphModule, *, is_backward: bool, visible: int) -> int | None:
    """Inductor's count for one graph, of which a copy is lowered."""
    module = copy_graph(module)
    (output,) = module.graph.find_nodes(op="output")
    _meta.show_outputs(output, visible)
    inputs = [_meta.value(node) for node in module.graph.find_nodes(op="placeholder")]
    return _compat.inductor_peak_nbytes(module, inputs, is_backward=is_backward)

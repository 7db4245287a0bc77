"""Planning against what Inductor will really run.

The planner's model of fusion is good to a few percent; a budget is a promise. So before a plan is
used, Inductor lowers and schedules its two graphs (no code is generated) and says what they will
hold. A plan over the budget is made again for a budget smaller by the excess; one that leaves much
unused, for one larger by what it leaves. The number of rounds is bounded, and the plan says how
many plans were counted. The count must leave `UNCOUNTED` of the budget free, a margin chosen
and not derived, for what library calls allocate that neither Inductor nor gcpass knows of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx
from torch.fx.node import map_arg

from gcpass._budget import Budget
from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator
from gcpass._planning import Planned, Request, infeasible_message, make_plan, resolve_budget
from gcpass.fx import _compat, _meta
from gcpass.fx._analyze import Analysis
from gcpass.fx._costs import tensor_nbytes, workspace_nbytes
from gcpass.fx._graphs import copy_graph
from gcpass.fx._lower import lower

ROUNDS = 3
UNCOUNTED = 0.02  # of the count: what library calls allocate and nobody knows of
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
        return Checked(planned, modules, _peak_bytes(analysis, planned, modules))

    tried = _search(attempt, int(budget / (1 + UNCOUNTED)))
    fitting = [c for c in tried if c.peak_bytes * (1 + UNCOUNTED) <= budget]
    if fitting:
        best = min(fitting, key=_recompute)
    else:
        tried.append(attempt(1, "best"))  # the smallest peak by the planner's own count
        best = min(tried, key=lambda c: c.peak_bytes)
    notes: tuple[str, ...] = ()
    if best.peak_bytes > budget:
        floor = replace(best.planned.evaluation.peak, nbytes=best.peak_bytes)
        message = infeasible_message(budget, floor)
        if request.on_infeasible == "error":
            raise InfeasibleBudget(message, budget_bytes=budget, floor_bytes=best.peak_bytes)
        warnings.warn(f"gcpass: {message} Going on with the smallest peak.", stacklevel=2)
        notes = (message,)
    plan = replace(
        best.planned.plan,
        budget_bytes=budget,
        predicted_peak_bytes=best.peak_bytes,
        counted=len(tried),
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
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
) -> int:
    """Inductor's count of both graphs, with what it leaves out of it.

    That is: outputs and tangents that the caller holds; inputs that Inductor converts to another
    layout in the forward and then saves as the copies they are; and, where convolutions are not
    laid out for it, the blocked copies that oneDNN makes.
    """
    forward, backward = modules
    ahead = _count(forward, is_backward=False, visible=analysis.num_fwd_outputs)
    back = _count(backward, is_backward=True, visible=0)
    if ahead is None or back is None:
        return planned.evaluation.peak_nbytes
    copies = sum(
        tensor_nbytes(_meta.value(node))
        for node, name in zip(_outputs(forward), ahead.output_names, strict=True)
        if isinstance(node, fx.Node) and node.op == "placeholder" and name != node.name
    )
    return max(
        ahead.peak_nbytes + _copies_in_convolutions(forward, ahead),
        back.peak_nbytes
        + copies
        + _held_by_the_caller(analysis, planned)
        + _copies_in_convolutions(backward, back),
    )


def _count(
    module: fx.GraphModule, *, is_backward: bool, visible: int
) -> _compat.InductorCount | None:
    """Inductor's count for one graph, of which a copy is lowered."""
    module = copy_graph(module)
    (output,) = module.graph.find_nodes(op="output")
    _meta.show_outputs(output, visible)
    inputs = [_meta.value(node) for node in module.graph.find_nodes(op="placeholder")]
    return _compat.inductor_count(module, inputs, is_backward=is_backward, fullest=_fullest_call)


def _outputs(module: fx.GraphModule) -> list[object]:
    (output,) = module.graph.find_nodes(op="output")
    (values,) = output.args
    assert isinstance(values, (list, tuple))
    return list(values)


def _copies_in_convolutions(module: fx.GraphModule, count: _compat.InductorCount) -> int:
    if count.converts_layouts:
        return 0
    found = [0]
    for node in module.graph.nodes:
        if node.op == "call_function" and "convolution" in str(node.target):
            found.append(workspace_nbytes(node, map_arg(node.args, _meta.value), _meta.value(node)))
    return max(found)


def _held_by_the_caller(analysis: Analysis, planned: Planned) -> int:
    """Bytes of tangents, and of outputs that are not among the kept values."""
    problem = analysis.problem
    tangents = {
        s
        for op in problem.backward_range
        if problem.ops[op].target == "tangent"
        for s in problem.produced[op]
    }
    kept = {problem.kept_storage[k] for k in planned.kept if k in problem.kept_storage}
    return sum(problem.storages[s].nbytes for s in tangents | (problem.output_storages - kept))


def _calls(order: Sequence[Any]) -> list[int]:
    """For each scheduled node, the call it runs in.

    On the CPU Inductor puts neighbouring loops into one C++ function: what they make is allocated
    before the call, and what they read is freed after it. A library call stands alone.
    """
    calls: list[int] = []
    alone = True
    for node in order:
        device = node.get_device()
        loop = not node.is_extern() and device is not None and device.type == "cpu"
        calls.append((calls[-1] if calls else -1) + (not loop or alone))
        alone = not loop
    return calls


def _fullest_call(lives: Sequence[Any], order: Sequence[Any]) -> int:
    """The most bytes alive during a call, given each buffer's first and last node."""
    calls = _calls(order)
    count = (calls[-1] if calls else 0) + 1
    change = [0] * (count + 1)
    for life in lives:
        change[calls[life.start_step]] += life.size_alloc
        if life.end_step != -1:
            change[calls[life.end_step] + 1] -= life.size_free
    alive = fullest = 0
    for step in change:
        alive += step
        fullest = max(fullest, alive)
    return fullest

"""Planning against what Inductor will really run.

The planner's model of fusion is good to a few percent; a budget is a promise. So before a plan is
used, Inductor writes the code of its two graphs (nothing is compiled), and what that code will hold
is read from it. A plan over the budget is made again for a smaller one; a plan that leaves much
unused, for a larger one. The number of rounds is bounded, and the plan says how many plans were
counted.

Inductor would rather hold a free block for a later value of its size than give it back, wherever it
takes the peak to be elsewhere, and of what library calls need it knows nothing. It may do so where
the budget is kept all the same.

The count leaves a part of the budget free for what library calls allocate that no code names:
measured on the CPU (0.2% at most, nothing in matrix products in fp32), a margin chosen and not
derived elsewhere.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from gcpass._budget import Budget
from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator, Use
from gcpass._plan import Plan
from gcpass._planning import Planned, Request, infeasible_message, make_plan, replay, resolve_budget
from gcpass._problem import Kernel
from gcpass.fx import _compat_inductor, _meta
from gcpass.fx._analyze import Analysis
from gcpass.fx._call import block_nbytes, call_of, packet_name
from gcpass.fx._correction import Moments, beyond, corrected
from gcpass.fx._devices import device_of
from gcpass.fx._generated import NOTHING, Generated, Storage, run
from gcpass.fx._graphs import copy_graph
from gcpass.fx._kernels import kernel
from gcpass.fx._lower import lower
from gcpass.fx._views import base_of
from gcpass.fx._workspaces import workspace_nbytes

ROUNDS, TOLD = 5, 3  # plans asked for at most, and then such as know what was counted
_UNCOUNTED, _UNCOUNTED_ELSEWHERE = 0.004, 0.02  # of the count: on the CPU, on other devices
_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
_UNUSED = 0.04  # of the budget left over before a larger one is tried


@dataclass(frozen=True)
class Checked:
    """A plan, what evaluated it, its graphs, and the memory that Inductor will use with them.

    Attributes:
        moments: of the backward, as Inductor's code has them.
        reuses: whether Inductor may hold a free block for a later value of its size.
    """

    evaluator: Evaluator
    planned: Planned
    modules: tuple[fx.GraphModule, fx.GraphModule]
    use: Use
    moments: Moments = ()
    reuses: bool = True

    @property
    def peak_bytes(self) -> int:
        return self.use.peak_nbytes


def plan_checked(
    analysis: Analysis,
    request: Request,
    versions: dict[str, str],
    static_lifetime_input_indices: list[int] | None,
    *,
    warn: bool = True,
) -> Checked:
    """The plan with the least recomputation whose peak, by Inductor's count, is within the budget.

    Args:
        analysis: of the graph.
        request: what is asked for, a budget included.
        versions: recorded in the plan.
        static_lifetime_input_indices: inputs whose memory never moves.
        warn: warn where the smallest peak is used for want of a plan within the budget.

    Raises:
        InfeasibleBudget: no round's plan is, and the request says to raise.
    """
    evaluator = Evaluator(analysis.problem)
    budget = resolve_budget(evaluator, request)
    assert budget is not None
    known: dict[object, Checked] = {}

    def attempt(
        target: int,
        on_infeasible: str,
        solver: str = request.solver,
        judge: Evaluator = evaluator,
    ) -> Checked:
        asked = replace(
            request,
            budget=Budget(nbytes=max(target, 1)),
            on_infeasible=on_infeasible,
            solver=solver,
        )
        # No bound: what is proven of the planner's memory says nothing of Inductor's code.
        planned = make_plan(
            judge,
            asked,
            versions=versions,
            notes=analysis.notes,
            warn=False,
            certify=False,
        )
        choices = planned.plan.kept, planned.plan.stops
        if choices not in known:
            if judge is not evaluator:
                planned = replace(replay(evaluator, planned.plan), plan=planned.plan)
            modules = lower(analysis, planned, static_lifetime_input_indices)
            use, moments = _count(analysis, planned, modules, reuses=False)
            known[choices] = Checked(evaluator, planned, modules, use, moments, reuses=False)
        return known[choices]

    countable = int(budget / (1 + uncounted(analysis)))
    tried = _search(attempt, countable)
    fullest = max((c.peak_bytes for c in tried if c.peak_bytes <= countable), default=0)
    if tried and tried[0].peak_bytes > countable and countable - fullest > _UNUSED * countable:
        tried += _told(attempt, tried[0], countable)
    fitting = [c for c in tried if c.peak_bytes <= countable]
    if fitting:
        best = min(fitting, key=lambda c: c.planned.evaluation.overhead_picoseconds)
        use, _ = _count(analysis, best.planned, best.modules, reuses=True)
        if use.peak_nbytes <= countable:  # to hold a free block for later costs nothing then
            best = replace(best, use=use, reuses=True)
    else:
        # The smallest peak by the planner's own count, and without recomputing more than once: what
        # Inductor fuses of several runs of one op it computes at once, and holds.
        solvers = dict.fromkeys((request.solver, "segments"))
        tried += [attempt(1, "best", solver) for solver in solvers]
        best = min(tried, key=lambda c: c.peak_bytes)
    notes = analysis.notes
    if best.peak_bytes > countable:
        floor = replace(best.planned.evaluation.peak, nbytes=best.peak_bytes)
        message = infeasible_message(budget, floor)
        if request.on_infeasible == "error":
            raise InfeasibleBudget(message, budget_bytes=budget, floor_bytes=best.peak_bytes)
        if warn:
            warnings.warn(f"gcpass: {message} Going on with the smallest peak.", stacklevel=2)
        notes = (*notes, message)
    plan = replace(
        best.planned.plan,
        budget_bytes=budget,
        predicted_peak_bytes=best.peak_bytes,
        counted=len(known),
        notes=notes,
    )
    return replace(best, planned=replace(best.planned, plan=plan))


def counted(
    analysis: Analysis,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
    *,
    reuses: bool,
) -> Plan:
    """A plan that is used whatever it holds, with the peak that Inductor will reach with it."""
    use, _ = _count(analysis, planned, modules, reuses=reuses)
    return replace(planned.plan, predicted_peak_bytes=use.peak_nbytes, counted=1)


def _search(attempt: Callable[[int, str], Checked], budget: int) -> list[Checked]:
    """The plans tried for a budget, every one counted.

    What the planner is asked for moves by what its plan was off, and stays between the largest
    target whose plan fitted, or that had none, and the smallest whose plan did not fit.
    """
    tried: list[Checked] = []
    low, exceeding, target = 0, None, budget
    for _ in range(ROUNDS):
        try:
            tried.append(attempt(target, "error"))
        except InfeasibleBudget as error:
            if exceeding is None:
                break
            low, target = target, max(error.floor_bytes or 0, (target + exceeding) // 2)
            if exceeding - target < budget // 100:
                break
            continue
        spare = budget - tried[-1].peak_bytes
        if spare >= 0:
            if not _recompute(tried[-1]) or spare < _UNUSED * budget:
                break
            low, target = target, target + spare
        else:
            exceeding = min(target, tried[-1].planned.evaluation.peak_nbytes)
            target = exceeding + spare - budget // 200
        if low and exceeding is not None:
            if exceeding - low < budget // 100:
                break
            if not low < target < exceeding:
                target = (low + exceeding) // 2
    return tried


def _told(attempt: Callable[..., Checked], first: Checked, budget: int) -> list[Checked]:
    """Plans for the problem as counts show it: of a first plan, and of those that do not fit."""
    if first.planned.repeated is not None:
        return []
    known: dict[int, int] = {}
    tried = [first]
    while len(tried) <= TOLD and tried[-1].peak_bytes > budget:
        more = beyond(first.evaluator, tried[-1].planned.kept, tried[-1].moments)
        known = {op: max(known.get(op, 0), more.get(op, 0)) for op in {**known, **more}}
        judge = Evaluator(corrected(first.evaluator.problem, known))
        try:
            tried.append(attempt(budget, "error", judge=judge))
        except InfeasibleBudget:
            break
    return tried[1:]


def uncounted(analysis: Analysis) -> float:
    """What a graph may hold beyond a count, as a part of that."""
    if device_of(map(_meta.value, analysis.nodes)).type != "cpu":
        return _UNCOUNTED_ELSEWHERE
    return 0.0 if all(map(_allocates_nothing, analysis.nodes)) else _UNCOUNTED


def _allocates_nothing(node: fx.Node) -> bool:
    """Whether the node runs in generated code, or in a library call that has no scratch memory."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    if kernel(node) is not Kernel.EXTERN or base_of(node) is not None:
        return True
    value = _meta.value(node)
    is_fp32 = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return is_fp32 and packet_name(node) in _PRODUCTS


def _recompute(checked: Checked) -> int:
    return checked.planned.evaluation.recompute_picoseconds


def counted_use(
    analysis: Analysis,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
) -> Use:
    """The bytes alive while the code of both graphs runs, one after the other.

    What the forward returns is alive until the backward has read it; outputs that the user sees,
    and the tangents that come in for them, are alive until the end.
    """
    return _count(analysis, planned, modules, reuses=True)[0]


def _count(
    analysis: Analysis,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
    *,
    reuses: bool,
) -> tuple[Use, Moments]:
    """The same, with the moments of the backward."""
    forward, backward = modules
    visible = analysis.num_fwd_outputs
    outputs, inputs = _outputs(forward), backward.graph.find_nodes(op="placeholder")
    saved = {output.name: i for i, output in enumerate(outputs) if isinstance(output, fx.Node)}
    given = _values(forward.graph.find_nodes(op="placeholder"))
    ahead = _written(forward, given, visible, reuses=reuses)
    if ahead is None:
        return planned.evaluation.use, ()
    restrided = [
        _restride(_meta.value(node), ahead.strides[saved[node.name]])
        if node.name in saved
        else _meta.value(node)
        for node in inputs
    ]
    overwritten = _overwritten(forward, backward, visible)
    back = _written(backward, restrided, overwritten=overwritten, reuses=reuses)
    if back is None:
        return planned.evaluation.use, ()
    nothing = [NOTHING for _ in forward.graph.find_nodes(op="placeholder")]
    converted = ahead.converts_layouts
    first = run(ahead, nothing, workspaces=_workspaces(forward, channels_last=converted))
    arguments, held = [], NOTHING.union(*first.outputs[:visible])
    for node in inputs:
        if node.name in saved:
            arguments.append(first.outputs[saved[node.name]])
        else:  # a tangent
            arguments.append(frozenset({Storage(_nbytes(node))}))
            held |= arguments[-1]
    converted |= back.converts_layouts  # or else it is handed what the forward converted
    workspaces = _workspaces(backward, channels_last=converted)
    second = run(back, arguments, held=held, workspaces=workspaces)
    between = sum(storage.nbytes for storage in NOTHING.union(*first.outputs))
    return Use(first.peak_nbytes, between, second.peak_nbytes), second.moments


def _written(
    module: fx.GraphModule,
    inputs: list[Any],
    visible: int = 0,
    overwritten: list[int] | None = None,
    *,
    reuses: bool,
) -> Generated | None:
    """The code for one graph, a copy of which is consumed; a forward if nothing is overwritten."""
    module = copy_graph(module)
    (output,) = module.graph.find_nodes(op="output")
    _meta.show_outputs(output, visible)
    return _compat_inductor.generated_code(module, inputs, overwritten, reuses=reuses)


def _restride(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A saved value in the layout that the forward's code gave it, as AOTAutograd does it."""
    if strides is None or not isinstance(value, torch.Tensor) or value.stride() == strides:
        return value
    return value.as_strided(value.size(), strides)


def _overwritten(forward: fx.GraphModule, backward: fx.GraphModule, visible: int) -> list[int]:
    """Places of the backward's inputs that it may write over: nobody else refers to them."""
    inputs = forward.graph.find_nodes(op="placeholder")
    outputs = _outputs(forward)
    saved = {output.name for output in outputs[visible:] if isinstance(output, fx.Node)}
    places = {
        place: node
        for place, node in enumerate(backward.graph.find_nodes(op="placeholder"))
        if node.name in saved
    }
    found = _compat_inductor.donated(
        _values(inputs),
        _values(outputs[:visible]),
        _values(_outputs(backward)),
        _values(places.values()),
    )
    return [list(places)[i] for i in found]


def _values(nodes: Iterable[object]) -> list[Any]:
    return [_meta.value(node) if isinstance(node, fx.Node) else None for node in nodes]


def _outputs(module: fx.GraphModule) -> list[object]:
    (output,) = module.graph.find_nodes(op="output")
    (values,) = output.args
    assert isinstance(values, (list, tuple))
    return list(values)


def _nbytes(node: fx.Node) -> int:
    value = _meta.value(node)
    return block_nbytes(value)


def _workspaces(module: fx.GraphModule, *, channels_last: bool) -> dict[str, int]:
    """Bytes that each library call needs while it runs."""
    return {
        node.name: workspace_nbytes(call_of(node), channels_last)
        for node in module.graph.nodes
        if node.op == "call_function"
    }

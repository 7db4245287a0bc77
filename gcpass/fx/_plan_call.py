"""``gcpass.plan``: what the backend would do, without compiling or running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gcpass._plan import Plan
from gcpass.fx._capture import capture
from gcpass.fx._options import Options, check_codegen, make_request, resolve_auto
from gcpass.fx._partitioner import plan_graph
from gcpass.policies import Policy


def plan(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_budget: object = None,
    hardware: str = "auto",
    policy: str | Policy | None = None,
    codegen: str = "inductor",
    solver: str = "auto",
    on_infeasible: str = "error",
) -> Plan:
    """Plan the training step of a callable on fake tensors: no memory, no GPU, nothing is run.

    Args:
        fn: returns a loss, or tensors, which are summed.
        args: its arguments; real tensors, or fake ones built under `gcpass.fake_mode`.
        kwargs: its keyword arguments.
        memory_budget: bound on the peak: ``"6GiB"``, bytes, a fraction in (0, 1] of the
            unconstrained plan's predicted peak, ``"auto"``, or None.
        hardware: the cost model.
        policy: None for the optimiser, or a manual policy: ``"none"``, ``"full"``, ``"torch"``,
            ``"torch:0.5"``, or an object of `gcpass.policies`.
        codegen: whose memory is predicted: ``"inductor"`` (fused) or ``"eager"`` (op by op).
        solver: who chooses.
        on_infeasible: ``"error"``, or ``"best"`` for the smallest peak and a warning.

    Returns:
        The plan.

    Raises:
        OptionError: an argument cannot be used.
        CaptureError: ``fn`` cannot be captured as one graph, or needs no gradient.
        InfeasibleBudget: no plan keeps the peak within the budget.
    """
    request = make_request(memory_budget, policy, solver, hardware, on_infeasible)
    codegen = check_codegen(codegen)
    captured = capture(fn, args, kwargs, codegen)
    if request.budget.auto:
        budget = resolve_auto(Options(request=request), captured.inputs)
        request = make_request(budget, policy, solver, hardware, on_infeasible)
    _, planned = plan_graph(captured.joint, captured.num_fwd_outputs, request, codegen)
    return planned.plan

"""``gcpass.plan`` and ``gcpass.frontier``: what the backend would do, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gcpass._detail import detailed, explained
from gcpass._errors import OptionError
from gcpass._frontier import Frontier
from gcpass._plan import Plan
from gcpass.fx._capture import capture
from gcpass.fx._devices import device_of
from gcpass.fx._graphs import copy_graph
from gcpass.fx._options import Options, check_codegen, make_request, resolve_auto
from gcpass.fx._partitioner import plan_frontier, plan_graph
from gcpass.fx._prices import check_hardware, find_prices
from gcpass.policies import PolicyLike


def plan(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_budget: object = None,
    hardware: str = "auto",
    policy: PolicyLike | None = None,
    codegen: str = "inductor",
    rules: Mapping[str, str] | None = None,
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
        hardware: the cost model: ``"auto"`` (the device's profile), ``"measured"`` (ops are run),
            ``"reference"``, a profile such as ``"h100"``, or the path of one.
        policy: None for the optimiser, or a manual policy: its name (`gcpass.policies`), an object
            of `gcpass.policies`, or a function of a row that returns ``"save"``, ``"recompute"``
            or None.
        rules: ``"save"`` or ``"recompute"`` by pattern of module paths, such as
            ``{"layers.*.mlp": "recompute", "*.router": "save"}``; the policy decides the rest.
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
    request = make_request(memory_budget, policy, solver, on_infeasible, rules)
    request = replace(request, one_graph=True)
    hardware, codegen = check_hardware(hardware), check_codegen(codegen)
    captured = capture(fn, args, kwargs, codegen)
    if request.budget.auto:
        budget = resolve_auto(Options(request=request), captured.inputs)
        request = replace(request, budget=budget)
    prices = find_prices(hardware, device_of(captured.inputs))
    _, evaluator, planned = plan_graph(
        captured.joint, captured.num_fwd_outputs, request, prices, codegen
    )
    return replace(detailed(evaluator, planned), target=_name(fn))


def _name(fn: Callable[..., Any]) -> str:
    """What a person would call a callable: a module by its class."""
    if isinstance(fn, torch.nn.Module):
        return type(fn).__name__
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def frontier(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    hardware: str = "auto",
    rules: Mapping[str, str] | None = None,
    codegen: str = "inductor",
    points: int | None = None,
) -> Frontier:
    """All useful plans of a callable's training step, from unconstrained to the smallest peak.

    Args:
        fn: returns a loss, or tensors, which are summed.
        args: its arguments; real tensors, or fake ones built under `gcpass.fake_mode`.
        kwargs: its keyword arguments.
        hardware: the cost model: ``"auto"`` (the device's profile), ``"measured"`` (ops are run),
            ``"reference"``, a profile such as ``"h100"``, or the path of one.
        rules: as for `plan`.
        codegen: whose memory is predicted: ``"inductor"`` (fused) or ``"eager"`` (op by op).
        points: how many plans, at most; None for 24. Their peaks are spread evenly.

    Returns:
        The frontier.

    Raises:
        OptionError: an argument cannot be used.
        CaptureError: ``fn`` cannot be captured as one graph, or needs no gradient.
    """
    return compare(fn, args, kwargs, hardware=hardware, rules=rules, codegen=codegen, points=points)


def compare(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    *,
    hardware: str,
    codegen: str,
    points: int | None,
    policies: Sequence[str] = (),
    rules: Mapping[str, str] | None = None,
) -> Frontier:
    """`frontier`, with the plans of other policies beside it, which are under no rules."""
    whole = isinstance(points, int) and not isinstance(points, bool)
    if points is not None and (not whole or points < 2):
        raise OptionError(f"points={points!r} must be a whole number of at least 2, or None")
    hardware, codegen = check_hardware(hardware), check_codegen(codegen)
    asked = replace(make_request(None, None, "auto", "error", rules), one_graph=True)
    requests = [make_request(None, p, "auto", "error") for p in policies]
    captured = capture(fn, args, kwargs, codegen)
    joints = [copy_graph(captured.joint) for _ in policies]
    count = captured.num_fwd_outputs
    prices = find_prices(hardware, device_of(captured.inputs))
    made = plan_frontier(captured.joint, count, asked, prices, codegen, points or _POINTS)
    others = (
        explained(*plan_graph(joint, count, request, prices, codegen)[1:])
        for joint, request in zip(joints, requests, strict=True)
    )
    return Frontier(tuple(made), tuple(others))


_POINTS = 24

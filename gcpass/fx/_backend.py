"""``torch.compile(model, backend="gcpass")``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from gcpass._budget import Budget
from gcpass._errors import GcpassError
from gcpass._plan import Plan
from gcpass._report import write_report
from gcpass.fx import _compat, _compat_inductor
from gcpass.fx._costs import Prices
from gcpass.fx._devices import device_of
from gcpass.fx._group import group_of
from gcpass.fx._options import Options, read_options, resolve_auto
from gcpass.fx._part import Part
from gcpass.fx._partitioner import Partitioner
from gcpass.fx._prices import find_prices
from gcpass.fx._region import regions_fingerprint


def gcpass(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph so that its training step keeps within a memory budget.

    Args:
        gm: the graph Dynamo captured.
        example_inputs: its inputs.
        options: ``memory_budget``, ``reserve``, ``policy``, ``rules``, ``hardware``, ``solver``,
            ``on_infeasible``, ``codegen``, ``report``, ``plan``, ``strict``; any other goes to
            Inductor.
        mode: ``torch.compile``'s mode, for Inductor.

    Returns:
        The compiled callable.

    Raises:
        OptionError: an option cannot be used.
        InfeasibleBudget: no plan keeps the peak within the budget.
    """
    try:
        checked = read_options(options, mode)
        return compile_graph(gm, example_inputs, checked)
    except GcpassError as error:
        raise _compat.reach_the_user(error) from None


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    on_plan: Callable[[Plan], None] | None = None,
) -> Callable[..., Any]:
    """Compile a graph under checked options; ``on_plan`` is called with each plan made."""
    prices = find_prices(options.hardware, device_of(example_inputs))
    part = None
    if options.is_bounded:
        group = group_of(options.shared_key, lambda: _resolved(options, example_inputs))
        options = _with_budget(options, group.budget)
        part = Part(group, _compat.current_code(), _compat.is_whole_model(gm))
    elif options.request.budget.auto:
        options = _with_budget(options, resolve_auto(options, example_inputs))
    compiled = _compile(gm, example_inputs, options, prices, on_plan, part)
    return compiled if part is None else part.counted(compiled)


def _compile(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    prices: Prices,
    on_plan: Callable[[Plan], None] | None,
    part: Part | None,
) -> Callable[..., Any]:
    def planned(plan: Plan) -> None:
        if on_plan is not None:
            on_plan(plan)
        if options.report is not None:
            write_report(plan, options.report)

    wants_plan = on_plan is not None or options.report is not None
    regions = regions_fingerprint(gm)
    partitioner = Partitioner(options, prices, planned if wants_plan else None, regions, part)
    if options.codegen == "eager":
        return _compat.compile_eagerly(
            gm, example_inputs, partitioner, _compat.eager_decompositions()
        )
    is_asked = wants_plan or (part is not None and part.group.has_others)
    with _compat.without_compiled_graph_cache() if is_asked else contextlib.nullcontext():
        return _compat_inductor.compile_with_inductor(
            gm,
            example_inputs,
            {**options.inductor, "custom_partitioner_fn": partitioner},
            relaxed=lambda: partitioner.relaxed,
        )


def _resolved(options: Options, inputs: Sequence[Any]) -> Budget:
    budget = options.request.budget
    return resolve_auto(options, inputs) if budget.auto else budget


def _with_budget(options: Options, budget: Budget) -> Options:
    return replace(options, request=replace(options.request, budget=budget))

"""The partitioner: a joint graph and a request in, the planned forward and backward out."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from gcpass._detail import detailed, explained
from gcpass._errors import GcpassError, UnsupportedGraph
from gcpass._evaluate import Evaluator
from gcpass._plan import Plan
from gcpass._planning import Planned, Request, StockPartition, make_frontier, make_plan, replay
from gcpass._problem import Phase
from gcpass._version import __version__
from gcpass.fx import _compat
from gcpass.fx._analyze import Analysis, analyze
from gcpass.fx._costs import Prices
from gcpass.fx._count import count, counted_use
from gcpass.fx._failure import write_failure
from gcpass.fx._graphs import copy_graph
from gcpass.fx._lower import lower
from gcpass.fx._options import Options
from gcpass.fx._part import Part
from gcpass.fx._preferences import honouring, preferred_first
from gcpass.fx._region import forget_torchs_regions
from gcpass.fx._ruling import apply_rules
from gcpass.fx._trace import trace_plan
from gcpass.fx._views import clone_mutated_inputs

log = logging.getLogger("gcpass")

VERSIONS = {"gcpass": __version__, "torch": torch.__version__}
UNRULED = Request()


class Partitioner(_compat.CustomPartitionerFn):
    """Plans a joint graph and splits it.

    Args:
        options: the checked options; ``request.budget.auto`` must have been resolved.
        prices: of the ops on the device that is compiled for.
        on_plan: called with each plan made, its peak counted; None if nobody asks.
        regions: fingerprint of the regions that are marked in the graph.
        part: of the group that the graph shares its budget with; None without a budget.

    Attributes:
        relaxed: whether Inductor may hold memory longer than values need it; known once the graph
            is partitioned.
    """

    def __init__(
        self,
        options: Options,
        prices: Prices,
        on_plan: Callable[[Plan], None] | None,
        regions: str = "",
        part: Part | None = None,
    ) -> None:
        self._options, self._prices, self._on_plan = options, prices, on_plan
        self._regions, self._part = regions, part
        self.relaxed = True

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        original = copy_graph(gm)
        try:
            return self._partition(gm, original, joint_inputs, **kwargs)
        except GcpassError as error:
            if self._options.strict or not isinstance(error, UnsupportedGraph):
                raise _compat.reach_the_user(error) from error
            reason, failure = str(error), error
        except Exception as error:
            if self._options.strict:
                raise
            reason, failure = f"{type(error).__name__}: {error}", error
        if self._part is not None:
            self._part.graph, self._part.is_refused = None, True
        log.info("planning failed", exc_info=failure)
        path = write_failure(failure, original, repr(self._options), VERSIONS)
        report = f"; {path} says more, to be attached to a report" if path is not None else ""
        warnings.warn(
            f"gcpass cannot plan this graph ({reason}); torch's own partitioner takes over, "
            f"and the memory budget is not kept for it{report}",
            stacklevel=2,
        )
        clone_mutated_inputs(original, kept=True)
        forget_torchs_regions(original)
        return stock(original, joint_inputs, 1.0, **kwargs)

    def _partition(
        self,
        gm: fx.GraphModule,
        original: fx.GraphModule,
        joint_inputs: Sequence[object],
        **kwargs: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        modules, evaluator, planned = self._planned(gm, original, joint_inputs, **kwargs)
        if log.isEnabledFor(logging.INFO):
            log.info("%s", explained(evaluator, planned).summary())
        if self._on_plan is not None:
            describe = detailed if self._options.report not in (None, "text") else explained
            self._on_plan(describe(evaluator, planned))
        trace_plan(lambda: explained(evaluator, planned))
        return modules

    def _planned(
        self,
        gm: fx.GraphModule,
        original: fx.GraphModule,
        joint_inputs: Sequence[object],
        **kwargs: Any,
    ) -> tuple[tuple[fx.GraphModule, fx.GraphModule], Evaluator, Planned]:
        request, codegen = self._options.request, self._options.codegen
        num_fwd_outputs = kwargs["num_fwd_outputs"]
        static = kwargs.get("static_lifetime_input_indices")
        if self._part is not None:
            analysis = analyze_graph(gm, num_fwd_outputs, self._prices, codegen, request)
            checked = self._part.plan(analysis, request, VERSIONS, static)
            self.relaxed = checked.relaxed
            return checked.modules, checked.evaluator, checked.planned
        analysis, evaluator, planned = plan_graph(
            gm, num_fwd_outputs, request, self._prices, codegen, self._options.plan
        )
        if request.policy is not None and request.policy.torch_budget is not None:
            modules = stock(original, joint_inputs, request.policy.torch_budget, **kwargs)
        else:
            modules = lower(analysis, planned, static)
        stored = self._options.plan
        bound = stored.budget_bytes if stored is not None else None
        if codegen == "inductor" and (bound is not None or self._on_plan is not None):
            use = counted_use(analysis, planned, modules)
            if stored is not None and bound is not None:
                self.relaxed = use.peak_nbytes <= max(bound, stored.predicted_peak_bytes)
            if self._on_plan is not None:
                if not self.relaxed:
                    use, _ = count(analysis, planned, modules, relaxed=False)
                plan = replace(planned.plan, predicted_peak_bytes=use.peak_nbytes, counted=1)
                planned = replace(planned, plan=plan)
        return modules, evaluator, planned

    def __reduce__(self) -> tuple[Any, ...]:
        """Inductor pickles its settings into cache keys: let this one be its `uuid`."""
        return str, (self.uuid(),)

    def uuid(self) -> str:
        """Changes with anything that changes a plan, so that no cache serves another's graph."""
        parts = (
            VERSIONS,
            _source_digest(),
            self._options.request.fingerprint,
            self._regions,
            self._options.hardware,
            self._prices.fingerprint,
            self._options.codegen,
            self._options.plan.to_json() if self._options.plan else None,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def plan_graph(
    joint: fx.GraphModule,
    num_fwd_outputs: int,
    request: Request,
    prices: Prices,
    codegen: str,
    stored: Plan | None = None,
) -> tuple[Analysis, Evaluator, Planned]:
    """Analyze and plan a joint graph.

    Raises:
        UnsupportedGraph: the graph cannot be planned.
        InfeasibleBudget: no plan fits, and the request says to raise.
    """
    torch_budget = request.policy.torch_budget if request.policy else None
    stock_source = copy_graph(joint) if torch_budget is not None else None
    analysis = analyze_graph(joint, num_fwd_outputs, prices, codegen, request)
    if stored is not None:
        evaluator = Evaluator(analysis.problem)
        return analysis, evaluator, replay(evaluator, stored)
    if request.policy is None or not request.policy.fixed:
        return honouring(analysis, request, _made)
    stocks = None
    if stock_source is not None and torch_budget is not None:
        stocks = run_stock(stock_source, analysis, torch_budget)
    return _made(analysis, request, stocks)


def _made(
    analysis: Analysis, request: Request, stock: StockPartition | None = None
) -> tuple[Analysis, Evaluator, Planned]:
    evaluator = Evaluator(analysis.problem)
    planned = make_plan(evaluator, request, stock=stock, versions=VERSIONS, notes=analysis.notes)
    return analysis, evaluator, planned


def plan_frontier(
    joint: fx.GraphModule,
    num_fwd_outputs: int,
    request: Request,
    prices: Prices,
    codegen: str,
    count: int,
) -> list[Plan]:
    """Analyze a joint graph and plan it at ``count`` peaks.

    Raises:
        UnsupportedGraph: the graph cannot be planned.
    """
    analysis = analyze_graph(joint, num_fwd_outputs, prices, codegen, request)

    share = count if analysis.preferring() is None else max(count // 2, 2)

    def plans(analysis: Analysis) -> list[Plan]:
        evaluator = Evaluator(analysis.problem)
        made = make_frontier(evaluator, request, share, versions=VERSIONS, notes=analysis.notes)
        return [explained(evaluator, planned) for planned in made]

    return preferred_first(analysis, plans)


def analyze_graph(
    joint: fx.GraphModule,
    num_fwd_outputs: int,
    prices: Prices,
    codegen: str,
    request: Request = UNRULED,
) -> Analysis:
    """Analyze a joint graph, with the rules that a request and marked regions put on it.

    Raises:
        UnsupportedGraph: there is nothing in it to plan.
        OptionError: a policy's rule says what it must not.
        InfeasibleBudget: a region's budget cannot be kept, and the request says to raise.
    """
    analysis = analyze(joint, num_fwd_outputs, prices, codegen)
    if not any(op.phase is Phase.BACKWARD for op in analysis.problem.ops):
        raise UnsupportedGraph("its backward does not depend on the forward's gradients")
    return apply_rules(analysis, request)


def stock(
    joint: fx.GraphModule, joint_inputs: Sequence[object], budget: float, **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """torch's own partition of the joint graph at one of its budgets."""
    with _compat.stock_memory_budget(budget):
        return _compat.stock_partition(joint, joint_inputs, **kwargs)


def run_stock(joint: fx.GraphModule, analysis: Analysis, budget: float) -> StockPartition:
    """torch's own partition, in the terms of the problem."""
    _, backward = stock(joint, (), budget, num_fwd_outputs=analysis.num_fwd_outputs)
    index = analysis.index_of()
    problem = analysis.problem
    kept: set[int] = set()
    for node in backward.graph.find_nodes(op="placeholder"):
        op = index.get(node.name)
        if op is not None and op in problem.forward_range:
            holders = (problem.storages[s].holder for s in problem.ops[op].storages)
            kept.update(h for h in holders if h in problem.kept_storage and h is not None)
    tangents = [op for op in problem.backward_range if problem.ops[op].target == "tangent"]
    runs = [
        index[n.name] for n in backward.graph.nodes if n.op == "call_function" and n.name in index
    ]
    return StockPartition(frozenset(kept), (*tangents, *runs))


@cache
def _source_digest() -> str:
    """Changes with gcpass's own source, so that a development version never reuses a graph."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

"""The plan of a graph that may not be the only one of its budget (`gcpass.fx._group`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from gcpass._budget import Budget
from gcpass._evaluate import Evaluator
from gcpass._planning import Request, fingerprint, make_plan, planned
from gcpass.fx._analyze import Analysis
from gcpass.fx._calls import measured_use
from gcpass.fx._count import counted_use, uncounted
from gcpass.fx._group import Group
from gcpass.fx._lower import lower
from gcpass.fx._preferences import honouring
from gcpass.fx._verify import Checked, plan_checked

_ROUNDS = 4  # plans that are counted until a graph's part of a budget is settled


@dataclass
class Part:
    """One graph that is being compiled for a group.

    Attributes:
        group: the group.
        code: the function that the graph is of; None outside Dynamo.
        is_whole: whether nothing says that the graph is only a part of a model.
        graph: what the group calls it; None until it is planned.
        is_refused: whether it cannot be planned.
    """

    group: Group
    code: CodeType | None
    is_whole: bool
    graph: str | None = None
    is_refused: bool = False

    def plan(
        self,
        analysis: Analysis,
        request: Request,
        versions: dict[str, str],
        static: list[int] | None,
    ) -> Checked:
        """Plan the graph for what it gets of the budget, as far as the other graphs are known.

        Args:
            analysis: of the graph.
            request: what is asked of the graph if it is the only one.
            versions: recorded in the plan.
            static: inputs whose memory never moves.

        Raises:
            InfeasibleBudget: no plan keeps the budget, and the request says to raise.
        """
        group, counts = self.group, analysis.problem.codegen != "eager"
        self.graph = graph = fingerprint(analysis.problem)
        if counts:
            group.margin = max(group.margin, uncounted(analysis))

        def alone(analysis: Analysis, request: Request, *, warn: bool = True) -> Checked:
            if counts:
                return plan_checked(analysis, request, versions, static, warn=warn)
            evaluator, notes = Evaluator(analysis.problem), analysis.notes
            made = make_plan(evaluator, request, versions=versions, notes=notes, warn=warn)
            modules = lower(analysis, made, static)
            return Checked(evaluator, made, modules, made.evaluation.use)

        def beside_others(analysis: Analysis, request: Request) -> Checked:
            checked = alone(analysis, request, warn=False)
            return _with_plan(checked, notes=(*analysis.notes, _PROVISIONAL))

        def as_part(analysis: Analysis, request: Request) -> Checked:
            evaluator = Evaluator(analysis.problem)
            for tried in range(1, _ROUNDS + 1):
                offer, evaluator = group.part(graph, evaluator, request.on_infeasible)
                assert offer.solution is not None
                made = planned(
                    evaluator, request, group.nbytes, offer.solution, analysis.notes, versions
                )
                modules = lower(analysis, made, static)
                use = counted_use(analysis, made, modules) if counts else offer.use
                checked = Checked(evaluator, made, modules, use)
                checked = _with_plan(checked, counted=tried if counts else 0)
                is_known = use == offer.use or tried == _ROUNDS
                self._note(checked, is_provisional=False, is_final=is_known)
                if is_known or group.is_kept(graph, use):
                    break
            self._note(checked, is_provisional=False)
            notes = (*analysis.notes, group.describe())
            return _with_plan(checked, predicted_peak_bytes=checked.peak_bytes, notes=notes)

        if group.has_part(graph):
            return honouring(analysis, request, as_part)
        is_beside = bool(group.calls.waiting)
        may_be_part = request.budget.nbytes is None and not self.is_whole
        if not is_beside and (group.is_alone(graph) or not may_be_part):
            made = honouring(analysis, request, alone)
            self._note(made, is_provisional=False)
            return made
        left = group.left_nbytes()
        budget = request.budget if left is None else Budget(nbytes=max(left, 1))
        first = replace(request, budget=budget, on_infeasible="best")
        made = honouring(analysis, first, beside_others)
        plan = made.planned.plan
        is_over = plan.predicted_peak_bytes > (plan.budget_bytes or 0)
        self._note(made, is_provisional=is_beside or is_over)
        return made

    def _note(self, checked: Checked, *, is_provisional: bool, is_final: bool = True) -> None:
        assert self.graph is not None
        evaluation = checked.planned.evaluation
        self.group.note(
            self.graph,
            checked.use,
            evaluation.overhead_picoseconds,
            evaluator=checked.evaluator,
            predicted=evaluation.use,
            code=self.code,
            is_provisional=is_provisional,
            is_final=is_final,
        )

    def counted(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph, whose calls the group is told of."""
        calls = self.group.calls

        def call(*arguments: Any) -> Any:
            outputs = compiled(*arguments)
            if self.graph is None:  # a cache had it compiled, or torch's own partitioner took over
                self._measure(arguments, outputs)
            else:
                calls.ran_forward(self.graph, arguments, outputs)
            return outputs

        return call

    def _measure(self, arguments: tuple[Any, ...], outputs: Any) -> None:
        name = f"graph {id(self)}"
        node = self.group.calls.ran_forward(name, arguments, outputs)
        if node is not None:
            self.graph = name
            use = measured_use(node, arguments, outputs)
            self.group.note(name, use, code=self.code, is_provisional=not self.is_refused)


def _with_plan(checked: Checked, **changes: Any) -> Checked:
    plan = replace(checked.planned.plan, **changes)
    return replace(checked, planned=replace(checked.planned, plan=plan))


_PROVISIONAL = (
    "other graphs share the budget: this plan is for the first step, with what they leave of it, "
    "and may be made again when the whole step is known"
)

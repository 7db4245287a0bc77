"""Planning against what Inductor will really run.

The planner's model of fusion is good to a few percent; a budget is a promise. So before a plan is
used, what the code of its graphs will hold is counted (`gcpass.fx._count`). A plan over the budget
is made again for a smaller one; a plan that leaves much unused, for a larger one. Manual policies'
plans are counted too where they would be faster. The number of rounds is bounded, and the plan says
how many plans were counted.

Inductor would rather hold a free block for a later value of its size than give it back, wherever it
takes the peak to be elsewhere, and of what library calls need it knows nothing. And of loops that
follow one another it makes one kernel on the CPU, which lets go of nothing before the last of them
has run. It may do both where the budget is kept all the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import fx

from gcpass._budget import Budget
from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator, Use
from gcpass._planning import (
    Planned,
    Request,
    infeasible_message,
    make_plan,
    planned,
    replay,
    resolve_budget,
)
from gcpass._solvers import Solution, Status
from gcpass.fx._analyze import Analysis
from gcpass.fx._correction import Moments, beyond, corrected
from gcpass.fx._count import count, uncounted
from gcpass.fx._lower import lower
from gcpass.policies import PER_BLOCK, SELECTIVE_ATTENTION, sac_matmul

ROUNDS, TOLD = 5, 3  # plans asked for at most, and then such as know what was counted
_UNUSED = 0.04  # of the budget left over before a larger one is tried
_BY_HAND = (sac_matmul(), SELECTIVE_ATTENTION, PER_BLOCK)


@dataclass(frozen=True)
class Checked:
    """A plan, what evaluated it, its graphs, and the memory that Inductor will use with them.

    Attributes:
        moments: of the backward, as Inductor's code has them.
        relaxed: whether Inductor may hold memory longer than values need it.
    """

    evaluator: Evaluator
    planned: Planned
    modules: tuple[fx.GraphModule, fx.GraphModule]
    use: Use
    moments: Moments = ()
    relaxed: bool = True

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
    attempt = _Attempts(analysis, request, versions, static_lifetime_input_indices)
    budget = resolve_budget(attempt.evaluator, request)
    assert budget is not None
    countable = int(budget / (1 + uncounted(analysis)))
    tried = _search(attempt, countable)
    fullest = max((c.peak_bytes for c in tried if c.peak_bytes <= countable), default=0)
    if tried and tried[0].peak_bytes > countable and countable - fullest > _UNUSED * countable:
        tried += _told(attempt, tried[0], countable)
    tried += _by_hand(attempt, tried, countable)
    fitting = [c for c in tried if c.peak_bytes <= countable]
    if fitting:
        best = min(fitting, key=lambda c: _overhead(c.planned))
        use, _ = count(analysis, best.planned, best.modules, relaxed=True)
        if use.peak_nbytes <= countable:  # to hold it longer costs nothing then
            best = replace(best, use=use, relaxed=True)
    else:
        # The smallest peak by the planner's own count, and without recomputing more than once: what
        # Inductor fuses of several runs of one op it computes at once, and holds.
        solvers = dict.fromkeys((request.solver, "segments"))
        tried += [attempt(1, "best", solver) for solver in solvers]
        best = min(tried, key=lambda c: c.peak_bytes)
    notes = best.planned.plan.notes if fitting else analysis.notes
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
        counted=len(attempt.counted),
        notes=notes,
    )
    return replace(best, planned=replace(best.planned, plan=plan))


class _Attempts:
    """Plans of one graph for one target after another, each counted once.

    Attributes:
        evaluator: of the graph's problem.
        counted: the plans by what they choose.
    """

    def __init__(
        self,
        analysis: Analysis,
        request: Request,
        versions: dict[str, str],
        static_lifetime_input_indices: list[int] | None,
    ) -> None:
        self.evaluator = Evaluator(analysis.problem)
        self.counted: dict[object, Checked] = {}
        self._analysis, self._request, self._versions = analysis, request, versions
        self._static = static_lifetime_input_indices

    def __call__(
        self,
        target: int,
        on_infeasible: str,
        solver: str | None = None,
        judge: Evaluator | None = None,
    ) -> Checked:
        """The plan for a target in bytes, made by ``solver`` if that is given, for ``judge``'s
        problem if that is given."""
        analysis = self._analysis
        asked = replace(
            self._request,
            budget=Budget(nbytes=max(target, 1)),
            on_infeasible=on_infeasible,
            solver=solver or self._request.solver,
        )
        # No bound: what is proven of the planner's memory says nothing of Inductor's code.
        planned = make_plan(
            judge or self.evaluator,
            asked,
            versions=self._versions,
            notes=analysis.notes,
            warn=False,
            certify=False,
        )
        if judge is not None:
            planned = replace(replay(self.evaluator, planned.plan), plan=planned.plan)
        return self.count(planned)

    def count(self, planned: Planned) -> Checked:
        """A plan of the evaluator's problem, counted."""
        choices = planned.plan.kept, planned.plan.stops
        if choices not in self.counted:
            analysis = self._analysis
            modules = lower(analysis, planned, self._static)
            use, moments = count(analysis, planned, modules, relaxed=False)
            checked = Checked(self.evaluator, planned, modules, use, moments, relaxed=False)
            self.counted[choices] = checked
        return self.counted[choices]

    def by_hand(self) -> Iterator[Planned]:
        """The plans of a few manual policies; not those that break a rule."""
        for policy in _BY_HAND:
            assert policy.choose is not None
            kept = policy.choose(self.evaluator.problem)
            if self.evaluator.violations(kept):
                continue
            solution = Solution(Status.FEASIBLE, kept, self.evaluator.evaluate(kept))
            notes = *self._analysis.notes, f"keeps what policy {policy.name} keeps"
            yield planned(self.evaluator, self._request, None, solution, notes, self._versions)


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


def _by_hand(attempt: _Attempts, tried: list[Checked], budget: int) -> list[Checked]:
    """Plans of manual policies, fastest first, until one fits: such as are faster than all tried.

    What the planner takes a plan to hold is off by more for one than for another. It may find plans
    that need more than it thought and give up those that need less, which are often near these.
    """
    fitting = (_overhead(c.planned) for c in tried if c.peak_bytes <= budget)
    slowest, largest = min(fitting, default=math.inf), budget * (1 + _UNUSED)
    found: list[Checked] = []
    for plan in sorted(attempt.by_hand(), key=_overhead):
        if _overhead(plan) >= slowest:
            break
        if plan.evaluation.peak_nbytes <= largest:
            found.append(attempt.count(plan))
            if found[-1].peak_bytes <= budget:
                break
    return found


def _overhead(planned: Planned) -> int:
    return planned.evaluation.overhead_picoseconds


def _recompute(checked: Checked) -> int:
    return checked.planned.evaluation.recompute_picoseconds

"""Whether a training step fits into a device, and what the cheapest plan that does costs.

    budget = memory - reserve - weights - optimizer state - gradients that ZeRO holds - inputs

What is left is the planner's. The columns of an estimate are plans at that budget: nothing
recomputed, gcpass's own, and manual policies beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gcpass._budget import Budget
from gcpass._depth import wiring_of
from gcpass._errors import OptionError
from gcpass._evaluate import Evaluator
from gcpass._plan import Plan
from gcpass._planning import Request, carry_over, make_plan
from gcpass._problem import Problem
from gcpass._training import Device, Heads, Sizes, Training, heads, reduced_as_made, state_heads
from gcpass._workload import Workload
from gcpass.policies import NONE, find_policy

POLICIES = ("per_block",)  # shown beside gcpass
_SIMPLE = ("per_block", "full")


class Planner:
    """The plans of one problem that estimates need, each made once."""

    def __init__(self, problem: Problem, notes: Sequence[str] = ()) -> None:
        self._evaluator, self._notes = Evaluator(problem), tuple(notes)
        self._under: dict[str, Plan] = {}
        self._alike: Planner | None = None

    @cached_property
    def keeping_all(self) -> Plan:
        return self._make(Request(policy=NONE))

    @cached_property
    def fastest(self) -> Plan:
        return self._make(Request())

    @cached_property
    def smallest(self) -> Plan:
        """The plan with the smallest peak that was found."""
        searched = self._make(Request(budget=Budget(nbytes=1), on_infeasible="best"))
        return min(searched, self.simplest(0), key=lambda plan: plan.predicted_peak_bytes)

    def know(self, other: Planner) -> None:
        """Use the smallest plan of another size where the ops are the same."""
        if other is not self and other._ops == self._ops:
            self._alike = other

    @cached_property
    def _ops(self) -> int:
        problem = self._evaluator.problem
        return hash((wiring_of(problem), tuple(op.name for op in problem.ops)))

    @cached_property
    def _carried(self) -> Plan | None:
        """The smallest plan of another size, here."""
        if self._alike is None:
            return None
        return carry_over(self._evaluator, self._alike.smallest, self._notes)

    def lean(self, budget_nbytes: int) -> Plan:
        """A plan within a budget that needs no search; if none is, the smallest."""
        carried = self._carried
        known = self.simplest(0) if carried is None else carried
        return known if known.predicted_peak_bytes <= budget_nbytes else self.smallest

    def cheapest(self, budget_nbytes: int) -> Plan:
        """The fastest plan within a budget; if none is, the smallest."""
        if self.keeping_all.predicted_peak_bytes <= budget_nbytes:
            return self.fastest
        if budget_nbytes <= 0:
            return self.simplest(0)
        lean = self.lean(budget_nbytes)
        if lean.predicted_peak_bytes > budget_nbytes:
            return lean
        request = Request(budget=Budget(nbytes=budget_nbytes), on_infeasible="best")
        searched = self._make(request, certify=True)
        return searched if searched.predicted_peak_bytes <= budget_nbytes else lean

    def simplest(self, budget_nbytes: int) -> Plan:
        """The fastest plan within a budget of those that need no search; or else the smallest."""
        if self.keeping_all.predicted_peak_bytes <= budget_nbytes:
            return self.fastest
        fitting = [p for p in self._simple if p.predicted_peak_bytes <= budget_nbytes]
        if fitting:
            return min(fitting, key=lambda plan: plan.step_seconds)
        return min(self._simple, key=lambda plan: plan.predicted_peak_bytes)

    @cached_property
    def _simple(self) -> list[Plan]:
        return [self.fastest, *map(self.under, _SIMPLE)]

    def under(self, policy: str) -> Plan:
        """The plan of a manual policy.

        Raises:
            OptionError: there is no such policy.
        """
        if policy not in self._under:
            self._under[policy] = self._make(Request(policy=find_policy(policy)))
        return self._under[policy]

    def _make(self, request: Request, certify: bool = False) -> Plan:
        return make_plan(
            self._evaluator, request, notes=self._notes, warn=False, certify=certify
        ).plan


@dataclass(frozen=True)
class Case:
    """A workload, traced.

    Attributes:
        workload: what was traced.
        batch: its micro-batch; 1 where that is the target's own affair.
        seq: its sequence length; None if it has none.
        problem: the planning problem of one device.
        sizes: of the model.
        notes: what the user should know of the problem, in sentences.
        bytes_per_second: of the device's memory; 0 if it is not known.
    """

    workload: Workload
    batch: int
    seq: int | None
    problem: Problem = field(repr=False)
    sizes: Sizes
    notes: tuple[str, ...] = ()
    bytes_per_second: float = 0.0

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.problem, self.notes)

    @cached_property
    def _reducing(self) -> Planner:
        return Planner(reduced_as_made(self.problem), self.notes)

    def planner(self, training: Training) -> Planner:
        """Of the problem under a way of training."""
        return self._reducing if training.divides_gradients else self._planner

    def optimizer_seconds(self, training: Training) -> float:
        """Time to read gradients, and to read and write trained weights and state, once."""
        if not self.bytes_per_second:
            return 0.0
        trained = self.sizes.whole.gradients_nbytes / (training.world_size if training.zero else 1)
        nbytes = 3 * trained + 2 * training.optimizer_nbytes(self.sizes)
        return nbytes / self.bytes_per_second


@dataclass(frozen=True)
class Column:
    """One way to run the step.

    Attributes:
        name: ``"no recomputation"``, ``"gcpass"`` or a policy's name.
        plan: the plan; None if there is no such policy.
        heads: of memory under it; None likewise.
        step_seconds: of forward, backward, recomputation and the optimizer's step.
        fits: whether the heads fit into the device.
    """

    name: str
    plan: Plan | None = None
    heads: Heads | None = None
    step_seconds: float = 0.0
    fits: bool = False


@dataclass(frozen=True)
class Estimate:
    """What a training step needs, and whether it fits.

    Attributes:
        case: what was planned.
        training: how it is trained.
        device: what it has to fit into.
        state: the heads that no plan changes.
        columns: nothing recomputed, gcpass, and other policies.
        fastest_seconds: of a step without any bound.
    """

    case: Case
    training: Training
    device: Device
    state: Heads
    columns: tuple[Column, ...]
    fastest_seconds: float

    @property
    def budget_nbytes(self) -> int:
        """What is left for the plan; below zero if the state alone does not fit."""
        return self.device.usable_nbytes - self.state.total_nbytes

    @property
    def keeping_all(self) -> Column:
        return self.columns[0]

    @property
    def best(self) -> Column:
        """Gcpass's own."""
        return self.columns[1]

    @property
    def fits(self) -> bool:
        return self.best.fits

    @property
    def is_free(self) -> bool:
        """Whether it fits with nothing recomputed."""
        return self.keeping_all.fits

    @property
    def overhead(self) -> float:
        """Time that the budget costs, as a part of the fastest step."""
        return max(self.best.step_seconds / self.fastest_seconds - 1, 0.0)

    @property
    def samples_per_second(self) -> float:
        """Of one device: sequences or images."""
        spread = self.case.workload.sequence_parallel
        return self.case.batch / (self.best.step_seconds * spread)

    @property
    def largest_head(self) -> str:
        """The head that is most in the way."""
        assert self.best.heads is not None
        parts = named_heads(self.best.heads)
        return max(parts, key=lambda name: parts[name])


def named_heads(of: Heads) -> dict[str, int]:
    """The heads by the names that people know them by."""
    return {
        "weights": of.weights_nbytes,
        "gradients": of.gradients_nbytes,
        "optimizer state": of.optimizer_nbytes,
        "activations + temporaries": of.activations_nbytes,
    }


def estimate(
    case: Case,
    training: Training,
    device: Device,
    policies: Sequence[str] = POLICIES,
    *,
    searched: bool = True,
) -> Estimate:
    """Plan a traced workload for a device.

    Args:
        case: the traced workload.
        training: how it is trained.
        device: what it has to fit into.
        policies: names of manual policies to show beside gcpass.
        searched: whether gcpass's own plan is searched for, which takes most of the time, or the
            best of some that are simple to make.
    """
    planner = case.planner(training)
    state = state_heads(training, case.sizes)
    budget = device.usable_nbytes - state.total_nbytes
    optimizer_seconds = case.optimizer_seconds(training)

    def column(name: str, plan: Plan) -> Column:
        peak, gradients = plan.predicted_peak_bytes, plan.peak.gradients_bytes
        made = heads(training, case.sizes, peak, gradients)
        return Column(name, plan, made, plan.step_seconds + optimizer_seconds, peak <= budget)

    columns = [
        column("no recomputation", planner.keeping_all),
        column("gcpass", planner.cheapest(budget) if searched else planner.simplest(budget)),
    ]
    for name in policies:
        try:
            columns.append(column(name, planner.under(name)))
        except OptionError:
            columns.append(Column(name))
    fastest = planner.fastest.step_seconds + optimizer_seconds
    return Estimate(case, training, device, state, tuple(columns), fastest)

"""Making a plan: choose, evaluate, explain."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gcpass._budget import NO_BUDGET, Budget
from gcpass._errors import InfeasibleBudget, OptionError
from gcpass._evaluate import Evaluation, Evaluator, Moment
from gcpass._plan import Peak, Plan
from gcpass._problem import Problem, Rule
from gcpass._repeat import Repeated, Stops, repeat
from gcpass._solvers import Solution, Status, find_solver, sweep
from gcpass._units import PICOSECONDS, format_bytes
from gcpass.policies import ModuleRules, Policy

ON_INFEASIBLE = ("error", "best")
POLICY = "policy"  # the solver's name in a plan that a policy alone decided


@dataclass(frozen=True)
class Request:
    """What a plan was asked for.

    Attributes:
        budget: the bound on the peak; ``auto`` must have been resolved.
        policy: a manual policy, or None for the optimiser.
        rules: by module path (`gcpass.policies.read_rules`); the policy decides what they leave.
        solver: the solver's name.
        on_infeasible: ``"error"`` or ``"best"``.
        one_graph: whether the graph is all of the user's step: rules must name modules of it.
    """

    budget: Budget = NO_BUDGET
    policy: Policy | None = None
    rules: ModuleRules = ()
    solver: str = "auto"
    on_infeasible: str = "error"
    one_graph: bool = False

    def __post_init__(self) -> None:
        find_solver(self.solver)
        if self.rules and self.policy is not None and self.policy.torch_budget is not None:
            raise OptionError(
                f"rules={dict(self.rules)!r} and policy={self.policy.name!r}: torch's partitioner "
                "decides everything itself; give one of the two"
            )
        if self.on_infeasible not in ON_INFEASIBLE:
            raise OptionError(
                f"on_infeasible={self.on_infeasible!r} must be one of {', '.join(ON_INFEASIBLE)}"
            )

    @property
    def fingerprint(self) -> str:
        """Changes with anything that is asked for."""
        policy = self.policy.fingerprint if self.policy else None
        return repr((self.budget, policy, self.rules, self.solver, self.on_infeasible))


@dataclass(frozen=True)
class Planned:
    """A plan with what the lowering needs of it.

    Attributes:
        plan: the plan.
        kept: the ops kept.
        evaluation: of the plan.
        repeated: the problem with further runs of some ops, if values are recomputed more than
            once; ``kept`` and ``evaluation`` are then in its terms.
        order: what the backward runs, in order, where another scheduler fixed it.
    """

    plan: Plan
    kept: frozenset[int]
    evaluation: Evaluation
    repeated: Repeated | None = None
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StockPartition:
    """What torch's own partitioner did with a graph: what it keeps, what its backward runs."""

    kept: frozenset[int]
    backward_order: tuple[int, ...]


def make_plan(
    evaluator: Evaluator,
    request: Request,
    *,
    stock: StockPartition | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
    warn: bool = True,
    certify: bool = True,
) -> Planned:
    """Plan one problem.

    Args:
        evaluator: of the problem.
        request: what is asked for.
        stock: what torch's own partitioner did, if the policy is torch's.
        versions: recorded in the plan.
        notes: recorded in the plan, before its own.
        warn: warn where the smallest peak is used for want of a plan within the budget.
        certify: give the optimiser's plan a lower bound.

    Returns:
        The plan and its evaluation; `gcpass._detail` adds the reasons.

    Raises:
        InfeasibleBudget: no plan within the budget was found and ``on_infeasible`` is
            ``"error"``.
    """
    problem = evaluator.problem
    budget_bytes = resolve_budget(evaluator, request)
    notes = list(notes)
    if request.policy is not None and request.policy.fixed:
        if stock is not None:
            kept, evaluation = stock.kept, evaluator.evaluate(stock.kept, stock.backward_order)
        else:
            assert request.policy.choose is not None
            kept = request.policy.choose(problem)
            evaluation = evaluator.evaluate(kept)
        for broken in evaluator.violations(kept)[:1]:
            again = broken.rule is Rule.NEVER_RECOMPUTE
            notes.append(
                f"{'gradients may be wrong' if again else 'a rule is broken'} under this policy: "
                f"{broken.reason}"
            )
        if budget_bytes is not None and evaluation.peak_nbytes > budget_bytes:
            notes.append(
                f"policy {request.policy.name} does not look at the budget, and exceeds it"
            )
    else:
        solution = find_solver(request.solver, certify=certify)(evaluator, budget_bytes)
        notes += _check_feasible(request, budget_bytes, solution, warn)
        return planned(evaluator, request, budget_bytes, solution, notes, versions)
    solution = Solution(Status.FEASIBLE, kept, evaluation)
    made = planned(evaluator, request, budget_bytes, solution, notes, versions)
    return replace(made, order=stock.backward_order) if stock else made


def make_frontier(
    evaluator: Evaluator,
    request: Request,
    count: int,
    *,
    versions: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> list[Planned]:
    """Plans of one problem from the fastest to the smallest peak, none beaten by another.

    Args:
        evaluator: of the problem.
        request: what the plans record; its budget and policy are not looked at.
        count: how many, at most.
        versions: recorded in the plans.
        notes: recorded in the plans.
    """
    notes = list(notes)
    made: list[Planned] = []
    for solution in sweep(evaluator, count):
        budget = solution.evaluation.peak_nbytes if made else None
        made.append(planned(evaluator, request, budget, solution, notes, versions))
    return made


def planned(
    evaluator: Evaluator,
    request: Request,
    budget_bytes: int | None,
    solution: Solution,
    notes: Iterable[str],
    versions: Mapping[str, str] | None,
) -> Planned:
    """The plan that a solution is.

    Args:
        evaluator: of the problem.
        request: what was asked for.
        budget_bytes: the bound on the peak that the solution was found for.
        solution: what to keep, and where to stop.
        notes: recorded in the plan.
        versions: recorded in the plan.
    """
    original, evaluation = evaluator.problem, solution.evaluation
    repeated, problem, kept = _repeated(original, solution.kept, solution.stops)
    plan = Plan(
        budget_bytes=budget_bytes,
        predicted_peak_bytes=evaluation.peak_nbytes,
        saved_bytes=evaluation.saved_nbytes,
        recompute_seconds=evaluation.recompute_picoseconds / PICOSECONDS,
        forward_seconds=problem.forward_picoseconds / PICOSECONDS,
        step_seconds=evaluation.step_picoseconds(problem) / PICOSECONDS,
        lower_bound_seconds=solution.bound_picoseconds / PICOSECONDS,
        peak=_peak(evaluation.peak),
        policy=request.policy.name if request.policy else "optimal",
        rules=request.rules,
        solver=POLICY if request.policy and request.policy.fixed else request.solver,
        hardware=original.hardware,
        codegen=problem.codegen,
        kept=tuple(original.ops[k].name for k in sorted(solution.kept)),
        stops=tuple((original.ops[p].name, depth) for p, depth in sorted(solution.stops.items())),
        graph=fingerprint(original),
        notes=tuple(notes),
        versions=tuple((versions or {}).items()),
    )
    return Planned(plan, kept, evaluation, repeated)


def _repeated(
    problem: Problem, kept: frozenset[int], stops: Stops
) -> tuple[Repeated | None, Problem, frozenset[int]]:
    """The problem that a plan with stops is evaluated on, and what it keeps there."""
    if not stops:
        return None, problem, kept
    repeated = repeat(problem, kept, stops)
    return repeated, repeated.problem, frozenset(repeated.place[k] for k in kept)


def replay(evaluator: Evaluator, plan: Plan) -> Planned:
    """A stored plan, applied to the problem it was made for.

    Raises:
        OptionError: it was made for another graph.
    """
    problem = evaluator.problem
    if plan.graph != fingerprint(problem):
        raise OptionError(
            "the given plan was made for another graph: plan again with this model, these input "
            f"shapes and codegen={problem.codegen!r}"
        )
    kept, stops = _choices(problem, plan)
    repeated, problem, kept = _repeated(problem, kept, stops)
    judge = Evaluator(problem) if repeated else evaluator
    return Planned(plan, kept, judge.evaluate(kept), repeated)


def carry_over(evaluator: Evaluator, plan: Plan, notes: Iterable[str] = ()) -> Plan:
    """The choices of a plan made for a problem of the same ops in other sizes.

    Args:
        evaluator: of the problem that the choices are applied to.
        plan: whose choices.
        notes: recorded in the new plan.
    """
    kept, stops = _choices(evaluator.problem, plan)
    repeated, problem, placed = _repeated(evaluator.problem, kept, stops)
    judge = Evaluator(problem) if repeated else evaluator
    solution = Solution(Status.FEASIBLE, kept, judge.evaluate(placed), stops=stops)
    return planned(evaluator, Request(), None, solution, list(notes), None).plan


def _choices(problem: Problem, plan: Plan) -> tuple[frozenset[int], dict[int, int]]:
    """What a plan keeps and where it stops, by the names of its ops."""
    index = {op.name: i for i, op in enumerate(problem.ops)}
    stops = {index[name]: depth for name, depth in plan.stops}
    return frozenset(index[name] for name in plan.kept), stops


def resolve_budget(evaluator: Evaluator, request: Request) -> int | None:
    """The budget in bytes; a fraction is taken of the unconstrained plan's predicted peak."""
    budget = request.budget
    if budget.fraction is not None:
        fastest = find_solver(request.solver)(evaluator, None)
        return max(int(budget.fraction * fastest.evaluation.peak_nbytes), 1)
    return budget.nbytes


def fingerprint(problem: Problem) -> str:
    """Changes with anything about the graph that a plan depends on."""
    digest = hashlib.sha256(problem.codegen.encode())
    for op in problem.ops:
        digest.update(repr((op.name, op.target, op.inputs, op.phase.value)).encode())
    for storage in problem.storages:
        digest.update(repr((storage.nbytes, storage.producer)).encode())
    return digest.hexdigest()[:16]


def _check_feasible(
    request: Request, budget_bytes: int | None, solution: Solution, warn: bool
) -> list[str]:
    if budget_bytes is None or solution.evaluation.peak_nbytes <= budget_bytes:
        return []
    message = infeasible_message(budget_bytes, solution.evaluation.peak)
    if request.on_infeasible == "error":
        raise InfeasibleBudget(
            message, budget_bytes=budget_bytes, floor_bytes=solution.evaluation.peak_nbytes
        )
    if warn:
        warnings.warn(f"gcpass: {message} Going on with the smallest peak.", stacklevel=2)
    return [message]


def infeasible_message(budget_bytes: int, floor: Moment) -> str:
    """What the smallest peak is, what it is made of, and what to change."""
    parts = {
        "gradients": floor.gradients,
        f"temporaries of {floor.op}": floor.temporaries,
        "values kept between segments": floor.kept,
        "recomputed values": floor.recomputed,
        "outputs the caller holds": floor.outputs,
    }
    made_of = ", ".join(
        f"{format_bytes(nbytes)} {name}"
        for name, nbytes in sorted(parts.items(), key=lambda part: -part[1])
        if nbytes
    )
    largest = max(parts, key=lambda name: parts[name])
    advice = {
        "gradients": "train fewer parameters (LoRA), shard them (FSDP), or use a smaller dtype",
        "values kept between segments": "use a smaller batch or sequence",
        "recomputed values": "use a smaller batch or sequence",
        "outputs the caller holds": "compute the loss inside the compiled function",
    }.get(largest, "use a smaller batch or sequence, or split that op")
    return (
        f"memory_budget={format_bytes(budget_bytes)} is below the smallest peak found, "
        f"{format_bytes(floor.nbytes)}, which is made of {made_of}. Raise the budget to at least "
        f"{format_bytes(floor.nbytes)} ({floor.nbytes} bytes), or {advice}."
    )


def _peak(moment: Moment) -> Peak:
    return Peak(
        op=moment.op,
        in_backward=moment.in_backward,
        kept_bytes=moment.kept,
        recomputed_bytes=moment.recomputed,
        gradients_bytes=moment.gradients,
        outputs_bytes=moment.outputs,
        temporaries_bytes=moment.temporaries,
    )

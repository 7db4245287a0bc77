"""Running a comparison: plan, compile, check, weigh and time one model under many policies.

Everything about one model happens in one process, from the same weights: each configuration is
compiled, its gradients are compared with eager's and its peak is taken; then the timed steps are
interleaved, in another order each round, so that what disturbs the machine, and what a step leaves
to the next, disturbs every row alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gcpass._comparison import GCPASS, ComparisonRow, at_peak_of
from gcpass._errors import GcpassError, InfeasibleBudget
from gcpass.fx._capture import capture, loss_of, no_gradient
from gcpass.fx._devices import device_of
from gcpass.fx._graphs import copy_graph
from gcpass.fx._measure import Gradients, Step, drop_gradients, leaves_below, rounds, take_gradients
from gcpass.fx._options import Options, make_request
from gcpass.fx._partitioner import plan_graph
from gcpass.fx._prices import find_prices

Progress = Callable[[str], None]
_WARM = 2  # steps before the timed ones: a compilation that failed makes Dynamo forget the others


@dataclass(frozen=True)
class Setting:
    """What is compared, for every model.

    Attributes:
        policies: names of manual policies.
        budgets: bounds for the optimiser, besides none: sizes, bytes or fractions.
        at_peaks: whether the optimiser is also given each policy's peak as its budget.
        codegen: ``"inductor"`` or ``"eager"``.
        hardware: the cost model.
        steps: timed steps of each row.
        seed: set before every step whose gradients are looked at.
    """

    policies: tuple[str, ...]
    budgets: tuple[object, ...] = ()
    at_peaks: bool = True
    codegen: str = "inductor"
    hardware: str = "auto"
    steps: int = 7
    seed: int = 0


def predicted(
    model: str, fn: Callable[..., Any], args: Sequence[Any], setting: Setting, progress: Progress
) -> list[ComparisonRow]:
    """The rows of one model, planned and not run."""
    captured = capture(fn, args, None, setting.codegen)
    prices = find_prices(setting.hardware, device_of(captured.inputs))

    def row(label: str, budget: object, policy: str | None) -> ComparisonRow:
        progress(label)
        request = make_request(budget, policy, "auto", "error")
        blank = ComparisonRow(model, label, policy, request.budget.nbytes)
        try:
            joint = copy_graph(captured.joint)
            made = plan_graph(joint, captured.num_fwd_outputs, request, prices, setting.codegen)
        except GcpassError as error:
            return _lost(blank, error)
        return _with_plan(blank, made[2].plan)

    return list(_rows(row, setting))


def measured(
    model: str, fn: Callable[..., Any], args: Sequence[Any], setting: Setting, progress: Progress
) -> list[ComparisonRow]:
    """The rows of one model, compiled and run; of what fails, why."""
    steps: dict[str, Step] = {}
    reference = _Reference(fn, args, setting.seed)

    def row(label: str, budget: object, policy: str | None) -> ComparisonRow:
        progress(label)
        request = make_request(budget, policy, "auto", "error")
        options = Options(request=request, codegen=setting.codegen, hardware=setting.hardware)
        step = Step(fn, args, None, options)
        blank = ComparisonRow(model, label, policy, request.budget.nbytes)
        try:
            torch.manual_seed(setting.seed)
            step.run()
            error = reference.error(label, step.take_gradients())
            peak = step.peak_bytes()
            step.drop_gradients()  # the next row's would be added to them
        except Exception as error:  # the comparison goes on without it, and the row says why
            return _lost(blank, error)
        if len(step.plans) == 1:
            blank = _with_plan(blank, step.plans[0])
        steps[label] = step
        return replace(
            blank,
            measured_peak_bytes=peak,
            gradient_error=error,
            gradient_reference=reference.label,
        )

    rows = list(_rows(row, setting))
    times: dict[str, list[float]] = {label: [] for label in steps}
    orders = rounds(steps, _WARM + setting.steps, setting.seed)
    for number, labels in enumerate(orders, -_WARM):
        progress(f"step {number + 1} of {setting.steps}" if number >= 0 else "warming up")
        for label in labels:
            seconds = steps[label].seconds()
            times[label] += [seconds] if number >= 0 else []
    return [
        replace(r, seconds=tuple(times[r.label]), seconds_median=statistics.median(times[r.label]))
        if r.label in times
        else r
        for r in rows
    ]


def _rows(
    row: Callable[[str, object, str | None], ComparisonRow], setting: Setting
) -> Iterator[ComparisonRow]:
    """The optimiser without a budget, the policies, the optimiser at budgets and at their peaks."""
    free = row(GCPASS, None, None)
    yield free
    manual = [row(policy, None, policy) for policy in setting.policies]
    yield from manual
    for budget in setting.budgets:
        yield row(f"{GCPASS} {budget}", budget, None)
    for other in manual if setting.at_peaks else ():
        peak, most = other.peak_bytes, free.peak_bytes
        if peak is not None and (most is None or peak < most):  # else the fastest plan will do
            yield row(at_peak_of(other), peak, None)


def _with_plan(row: ComparisonRow, plan: Any) -> ComparisonRow:
    return replace(
        row,
        budget_bytes=plan.budget_bytes,
        predicted_peak_bytes=plan.predicted_peak_bytes,
        recompute_ratio=plan.recompute_ratio,
        predicted_seconds=plan.step_seconds,
    )


def _lost(row: ComparisonRow, error: Exception) -> ComparisonRow:
    status = "infeasible" if isinstance(error, InfeasibleBudget) else "failed"
    text = f"{type(error).__name__}: {error}".partition("\n")[0]  # the rest is advice of Dynamo's
    return replace(row, status=status, error=text)


class _Reference:
    """The gradients that a row's are compared with: eager's, where it draws no random numbers.

    Where it does, those of the first row, which is given the same seed: compiled, each random op
    draws the same numbers whatever the plan.
    """

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], seed: int) -> None:
        first, again = (_eager_gradients(fn, args, s) for s in (seed, seed + 1))
        drawn = _distance(first, again) > 0
        self.label: str | None = None if drawn else "eager"
        self._gradients: Gradients | None = None if drawn else first

    def error(self, label: str, found: Gradients) -> float:
        """The relative distance from the reference; the first found becomes it, if need be."""
        if self._gradients is None:
            self.label, self._gradients = label, found
        return _distance(self._gradients, found)


def _eager_gradients(fn: Callable[..., Any], args: Sequence[Any], seed: int) -> Gradients:
    torch.manual_seed(seed)
    loss = loss_of(fn(*args))
    if loss is None:
        raise no_gradient(fn)
    leaves = leaves_below(loss)
    drop_gradients(leaves)
    loss.backward()
    return take_gradients(leaves)


def _distance(reference: Mapping[torch.Tensor, torch.Tensor], found: Gradients) -> float:
    """Norm of the difference over norm of the reference, over all gradients together."""
    difference = norm = 0.0
    for leaf in reference.keys() | found.keys():
        want, got = (
            grads[leaf].double() if leaf in grads else torch.zeros((), dtype=torch.double)
            for grads in (reference, found)
        )
        difference += float((got - want).square().sum())
        norm += float(want.square().sum())
    return (difference / norm) ** 0.5 if norm else float(difference > 0)

"""What a plan tells beyond its numbers: reasons, memory over the step, other plans beside it.

None of it is needed to run a plan, so it is made only for plans that somebody reads.
"""

from __future__ import annotations

from dataclasses import replace

from gcpass._evaluate import Evaluator, Run
from gcpass._explain import explain
from gcpass._plan import Plan, Tradeoff
from gcpass._planning import POLICY, Planned
from gcpass._solvers import find_solver, sketch
from gcpass._timeline import timeline
from gcpass._units import PICOSECONDS


def explained(evaluator: Evaluator, planned: Planned) -> Plan:
    """The plan with a row for each value that the backward wants.

    Args:
        evaluator: of the problem that was planned.
        planned: its plan.
    """
    return _with_rows(*_run(evaluator, planned), planned)


def detailed(evaluator: Evaluator, planned: Planned) -> Plan:
    """The plan with its rows, its memory over the step, and other plans of the step.

    Args:
        evaluator: of the problem that was planned.
        planned: its plan.
    """
    judge, run = _run(evaluator, planned)
    plan = _with_rows(judge, run, planned)
    fastest = find_solver("segments", certify=False)(evaluator, None)
    free = evaluator.trace(fastest.kept)
    others = sketch(evaluator, plan.budget_bytes)
    return replace(
        plan,
        timeline=timeline(run.moments),
        unconstrained=None if free.moments == run.moments else timeline(free.moments),
        frontier=tuple(
            Tradeoff(
                other.evaluation.peak_nbytes, other.evaluation.recompute_picoseconds / PICOSECONDS
            )
            for other in others
        ),
    )


def _run(evaluator: Evaluator, planned: Planned) -> tuple[Evaluator, Run]:
    judge = Evaluator(planned.repeated.problem) if planned.repeated else evaluator
    return judge, judge.trace(planned.kept, planned.order)


def _with_rows(judge: Evaluator, run: Run, planned: Planned) -> Plan:
    plan, repeated = planned.plan, planned.repeated
    further: dict[int, list[int]] = {}
    if repeated is not None:
        for copy, op in repeated.copies.items():
            further.setdefault(repeated.place[op], []).append(copy)
    policy = plan.policy if plan.solver == POLICY else None
    bounded = plan.budget_bytes is not None
    rows = explain(judge, run, bounded=bounded, policy=policy, further=further)
    return replace(plan, _rows=rows)

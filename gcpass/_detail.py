"""What a plan tells beyond its numbers: reasons, memory over the step, other plans beside it.

None of it is needed to run a plan, so it is made only for plans that somebody reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gcpass._evaluate import Evaluator, Run
from gcpass._explain import explain
from gcpass._plan import Plan, Tradeoff
from gcpass._planning import POLICY, Planned
from gcpass._problem import Problem
from gcpass._solvers import find_solver, made_in, saved_nbytes, sketch
from gcpass._timeline import timeline
from gcpass._units import PICOSECONDS, format_bytes


def explained(evaluator: Evaluator, planned: Planned) -> Plan:
    """The plan with a row for each value that the backward wants.

    Args:
        evaluator: of the problem that was planned.
        planned: its plan.
    """
    return _with_rows(evaluator, *_run(evaluator, planned), planned)


def detailed(evaluator: Evaluator, planned: Planned) -> Plan:
    """The plan with its rows, its memory over the step, and other plans of the step.

    Args:
        evaluator: of the problem that was planned.
        planned: its plan.
    """
    judge, run = _run(evaluator, planned)
    plan = _with_rows(evaluator, judge, run, planned)
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


def _with_rows(evaluator: Evaluator, judge: Evaluator, run: Run, planned: Planned) -> Plan:
    plan, repeated = planned.plan, planned.repeated
    further: dict[int, list[int]] = {}
    if repeated is not None:
        for copy, op in repeated.copies.items():
            further.setdefault(repeated.place[op], []).append(copy)
    policy = plan.policy if plan.solver == POLICY else None
    bounded = plan.budget_bytes is not None
    rows = explain(judge, run, bounded=bounded, policy=policy, further=further)
    kept = {judge.problem.ops[k].name for k in run.kept}
    notes = (*plan.notes, *_bounds(evaluator.problem, kept))
    return replace(plan, _rows=rows, notes=notes)


def _bounds(problem: Problem, kept: Collection[str]) -> Iterator[str]:
    """What became of the bounds on parts of the forward; those alike in one sentence."""
    most: dict[tuple[str, int], list[int]] = {}
    for bound in problem.bounds:
        saved = [h for h in made_in(problem, bound.ops) if problem.ops[h].name in kept]
        most.setdefault((bound.name, bound.nbytes), []).append(saved_nbytes(problem, saved))
    for (name, nbytes), saved in most.items():
        several = f" in each of {len(saved)}, at most" if len(saved) > 1 else ""
        yield (
            f"{name}:{several} {format_bytes(max(saved))} saved of what is made there, "
            f"{format_bytes(nbytes)} allowed"
        )

"""What the user says of values, modules and regions, put on an analyzed graph."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace

from gcpass._errors import InfeasibleBudget, OptionError
from gcpass._planning import Request
from gcpass.fx._analyze import Analysis
from gcpass.policies import under_rules, unmatched


def apply_rules(analysis: Analysis, request: Request) -> Analysis:
    """The graph under the regions marked in it and a request's rules and policy.

    torch's own partitioner knows none of them: under that policy the graph is left alone.

    Raises:
        OptionError: a policy's rule says what it must not, or a rule names no module.
        InfeasibleBudget: a region's budget cannot be kept, and the request says to raise.
    """
    policy, regions = request.policy, analysis.regions
    ignored = _naming_nothing(analysis, request)
    if policy is not None and policy.torch_budget is not None:
        notes = [f"policy {policy.name} does not look at {r.name}" for r in regions]
        return replace(analysis, notes=(*analysis.notes, *notes))
    problem, more = under_rules(
        analysis.problem, regions, request.rules, policy, request.on_infeasible
    )
    ruled_by = [region.name for region in regions]
    ruled_by += [f"rules[{pattern!r}]" for pattern, _ in request.rules]
    if policy is not None and policy.rule is not None:
        ruled_by.append(f"policy {policy.name}")
    return replace(
        analysis,
        problem=problem,
        notes=(*analysis.notes, *ignored, *more),
        ruled_by=tuple(ruled_by),
    )


def _naming_nothing(analysis: Analysis, request: Request) -> tuple[str, ...]:
    """Notes on rules that name no module of the graph.

    They may name one of another graph that the user's code is broken into. Only where that is
    ruled out they are errors; a misspelt name earns a warning.
    """
    notes = []
    for pattern, meant in unmatched(analysis.problem, request.rules).items():
        if request.one_graph:
            raise OptionError(f"rules[{pattern!r}] names no module of the graph; {meant}")
        notes.append(f"rules[{pattern!r}] names no module of this graph; {meant}")
        if meant.startswith("did you mean"):
            warnings.warn(f"gcpass: {notes[-1]}", stacklevel=2)
    return tuple(notes)


@contextlib.contextmanager
def naming_rules(analysis: Analysis) -> Iterator[None]:
    """Say in an error that no plan keeps the budget, which rules all plans are under."""
    try:
        yield
    except InfeasibleBudget as error:
        if not analysis.ruled_by:
            raise
        rules = ", ".join(dict.fromkeys(analysis.ruled_by))
        raise InfeasibleBudget(
            f"{error} This is under {rules}: without, the smallest peak may be lower.",
            budget_bytes=error.budget_bytes,
            floor_bytes=error.floor_bytes,
        ) from None

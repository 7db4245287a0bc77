"""What a plan does with every value the backward wants, and why, as rows of plain data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from gcpass._evaluate import Evaluation
from gcpass._problem import Problem, Rule
from gcpass._units import PICOSECONDS


@dataclass(frozen=True, slots=True)
class Row:
    """One value that the backward wants, or several alike (``count``).

    Attributes:
        op: the op that produces it, by its name in the joint graph.
        target: what the op calls, such as ``"aten.mm"``.
        module: the module it came from, such as ``"layers.3.mlp"``.
        source: the line it came from, such as ``"model.py:41"``.
        nbytes: size of its storage.
        seconds: time of running the op once.
        decision: ``"kept"`` or ``"recomputed"``.
        why: the reason in a few words.
        count: how many values the row stands for; sizes and times are their sums.
    """

    op: str
    target: str
    module: str
    source: str
    nbytes: int
    seconds: float
    decision: str
    why: str
    count: int = 1


def explain(problem: Problem, kept: Collection[int], evaluation: Evaluation) -> tuple[Row, ...]:
    """The rows of a plan, in forward order; views and empty values are left out."""
    twice = set(evaluation.recomputed)
    late = set(evaluation.backward_order)
    rows = []
    for op in problem.forward_range:
        produced = problem.produced[op]
        storage = problem.kept_storage.get(op)
        if op in kept and storage is not None and problem.wanted[op]:
            if nbytes := problem.storages[storage].nbytes:
                rows.append(_row(problem, op, nbytes, "kept", _why_kept(problem, op)))
        elif op in late and produced and not all(_holder_kept(problem, s, kept) for s in produced):
            nbytes = sum(problem.storages[s].nbytes for s in produced)
            why = _why_recomputed(problem, op) if op in twice else "only the backward reads it"
            rows.append(_row(problem, op, nbytes, "recomputed", why))
    return tuple(rows)


def candidates(problem: Problem) -> Iterator[tuple[int, Row]]:
    """Each op that a plan could keep and the backward wants, as a row without a decision."""
    for op in problem.forward_range:
        storage = problem.kept_storage.get(op)
        if storage is not None and problem.wanted[op] and problem.storages[storage].nbytes:
            row = _row(problem, op, problem.storages[storage].nbytes, "", "")
            made_by = problem.ops[problem.storages[storage].producer]  # of an item: its tuple
            yield op, replace(row, target=made_by.target, module=made_by.module)


def _holder_kept(problem: Problem, storage: int, kept: Collection[int]) -> bool:
    return problem.storages[storage].holder in kept


def _row(problem: Problem, index: int, nbytes: int, decision: str, why: str) -> Row:
    op = problem.ops[index]
    return Row(
        op.name,
        op.target,
        op.module,
        op.source,
        nbytes,
        op.picoseconds / PICOSECONDS,
        decision,
        why,
    )


def _why_kept(problem: Problem, op: int) -> str:
    constraint = problem.ops[op].constraint
    if constraint is not None:
        return constraint.reason
    if problem.kept_storage[op] in problem.output_storages:
        return "the caller holds it anyway"
    return "keeping it costs less than running it twice"


def _why_recomputed(problem: Problem, op: int) -> str:
    constraint = problem.ops[op].constraint
    if constraint is not None and constraint.rule is Rule.NEVER_KEEP:
        return constraint.reason
    return "its bytes are worth more than its time"


def fold(rows: Iterable[Row]) -> list[Row]:
    """Rows alike but for a layer's number, as one row each: ``layers.*.mlp``, counted."""
    groups: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        module = re.sub(r"\d+", "*", row.module)
        key = (module, row.target, row.decision, row.why)
        if key in groups:
            seen = groups[key]
            groups[key] = replace(
                seen,
                nbytes=seen.nbytes + row.nbytes,
                seconds=seen.seconds + row.seconds,
                count=seen.count + row.count,
            )
        else:
            groups[key] = replace(row, module=module)
    return list(groups.values())

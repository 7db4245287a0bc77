"""The record of a comparison: models x policies x budgets, a row each, whatever became of it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 1
GCPASS = "gcpass"  # the label of the optimiser without a budget


def median_ratio(seconds: Iterable[float], base: Iterable[float]) -> float:
    """How many times longer steps take: the median over rounds, in each of which both ran once.

    From round to round a machine's speed may change by more than what is measured.
    """
    return statistics.median(mine / other for mine, other in zip(seconds, base, strict=True))


@dataclass(frozen=True)
class ComparisonRow:
    """One model under one policy and budget.

    Attributes:
        model: the model's name.
        label: what the row is called: a policy's name, ``"gcpass 0.8"``, ``"gcpass at sqrt"``.
        policy: the policy, or None for the optimiser.
        budget_bytes: the bound on the peak, or None.
        status: ``"ok"``, ``"infeasible"`` or ``"failed"``.
        error: what happened, if the status is not ``"ok"``.
        predicted_peak_bytes: the plan's peak.
        recompute_ratio: recomputation as a fraction of the forward's time, by the cost model.
        predicted_seconds: time of a step, by the cost model.
        measured_peak_bytes: the most one step held beyond what was alive before it.
        seconds: every timed step; steps of the rows of one model are taken in turns.
        seconds_median: their median.
        gradient_error: norm of the gradients' difference from the reference's, over the norm of
            the reference's.
        gradient_reference: ``"eager"``, or, where eager draws random numbers of its own, the label
            of the compiled row that the others are compared with.
    """

    model: str
    label: str
    policy: str | None = None
    budget_bytes: int | None = None
    status: str = "ok"
    error: str | None = None
    predicted_peak_bytes: int | None = None
    recompute_ratio: float | None = None
    predicted_seconds: float | None = None
    measured_peak_bytes: int | None = None
    seconds: tuple[float, ...] = ()
    seconds_median: float | None = None
    gradient_error: float | None = None
    gradient_reference: str | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The measured peak; the predicted one where nothing was run."""
        measured = self.measured_peak_bytes
        return self.predicted_peak_bytes if measured is None else measured

    def times_longer(self, base: ComparisonRow) -> float | None:
        """How many times as long as a step of ``base`` one takes; None if not both were timed."""
        if not self.seconds or len(self.seconds) != len(base.seconds):
            return None
        return median_ratio(self.seconds, base.seconds)

    @property
    def is_planned(self) -> bool:
        """Whether one plan was made and nothing failed; else torch's own partition may have run."""
        return self.status == "ok" and self.recompute_ratio is not None


@dataclass(frozen=True)
class Comparison:
    """All rows of one run.

    Attributes:
        run: machine, versions, commit, seed, codegen and cost model.
        rows: models one after the other.
    """

    run: Mapping[str, Any]
    rows: tuple[ComparisonRow, ...]

    def models(self) -> dict[str, list[ComparisonRow]]:
        """The rows by model."""
        found: dict[str, list[ComparisonRow]] = {}
        for row in self.rows:
            found.setdefault(row.model, []).append(row)
        return found

    def pairs(self) -> list[tuple[ComparisonRow, ComparisonRow]]:
        """Each manual policy with gcpass at its peak, where both were planned and none failed."""
        found = []
        for row in self.rows:
            other = match_of(row, self.rows) if row.policy is not None else None
            if other is not None and row.is_planned and other.is_planned:
                found.append((row, other))
        return found

    def to_jsonl(self) -> str:
        """One line that describes the run, and one for each row."""
        lines: list[Any] = [{"format": FORMAT_VERSION, "run": dict(self.run)}]
        lines += [dataclasses.asdict(row) for row in self.rows]
        return "\n".join(map(json.dumps, lines))

    @classmethod
    def from_jsonl(cls, text: str) -> Comparison:
        """Read what `to_jsonl` wrote."""
        head, *rows = map(json.loads, text.splitlines())
        made = (ComparisonRow(**{**row, "seconds": tuple(row["seconds"])}) for row in rows)
        return cls(head["run"], tuple(made))

    def to_csv(self) -> str:
        """The rows, a column for each attribute but the single steps' times."""
        names = [f.name for f in dataclasses.fields(ComparisonRow) if f.name != "seconds"]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in self.rows)
        return file.getvalue()


def at_peak_of(row: ComparisonRow) -> str:
    """The label of the optimiser's row whose budget is another row's peak."""
    return f"{GCPASS} at {row.label}"


def match_of(row: ComparisonRow, rows: Iterable[ComparisonRow]) -> ComparisonRow | None:
    """gcpass at the peak of a manual policy's row: the fastest plan, if that holds no more."""
    of_model = {r.label: r for r in rows if r.model == row.model}
    free, matched = of_model.get(GCPASS), of_model.get(at_peak_of(row))
    if matched is not None:
        return matched
    if free is None or row.peak_bytes is None or free.peak_bytes is None:
        return None
    return free if free.peak_bytes <= row.peak_bytes else None

"""What ``gcpass demo`` found: plain data, its JSON, and its table."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcpass._units import format_bytes, format_seconds

FORMAT_VERSION = 1
_MARKS = "¹²³⁴⁵⁶⁷⁸⁹"


@dataclass(frozen=True)
class DemoRow:
    """One configuration of the demo, trained, weighed and timed.

    Attributes:
        label: what the table calls it.
        memory_budget: the option given, or None.
        policy: the option given, or None.
        budget_bytes: the bound on the peak, or None.
        predicted_peak_bytes: the plan's prediction; None if the graph could not be planned.
        measured_peak_bytes: most bytes of one forward and backward beyond what was alive before.
        first_step_seconds: time of the first step, compilation included.
        step_seconds: every later step time, taken in turns with the other rows'.
        losses: the loss of each optimizer step.
        notes: what the plan warns of.
    """

    label: str
    memory_budget: float | None
    policy: str | None
    budget_bytes: int | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int
    first_step_seconds: float
    step_seconds: tuple[float, ...]
    losses: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.step_seconds)


@dataclass(frozen=True)
class DemoRecord:
    """Everything the demo found, and on what.

    Attributes:
        machine: platform, processors, device and versions.
        model: where the model comes from, its shape and its number of parameters.
        codegen: ``"inductor"`` or ``"eager"``.
        seed: of the weights, the batches' order and the dropout.
        rows: the first is the one that the others are compared to.
    """

    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    codegen: str
    seed: int
    rows: tuple[DemoRow, ...]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT_VERSION, **dataclasses.asdict(self)}, indent=1)


def demo_table(record: DemoRecord) -> RenderableType:
    """The rows as a table, with the plans' notes below it."""
    rows = record.rows
    steps = len(rows[0].losses)
    table = Table()
    table.add_column("", no_wrap=True)
    for header in ("budget", "predicted\npeak", "measured\npeak", "step\ntime"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column(f"loss at\nstep {steps}", justify="right", no_wrap=True)
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    for row in rows:
        marks = "".join(_mark(notes.index(note)) for note in row.notes)
        table.add_row(
            Text(row.label + (f" {marks}" if marks else "")),
            _bytes(row.budget_bytes),
            _bytes(row.predicted_peak_bytes),
            _bytes(row.measured_peak_bytes),
            f"{row.median_seconds / rows[0].median_seconds:.2f}x",
            f"{row.losses[-1]:.4f}",
        )
    footnotes = [f"{_mark(i)} {note}" for i, note in enumerate(notes)]
    return Group(Text(_title(record)), table, *map(Text, [*footnotes, _legend(record)]))


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)


def _mark(index: int) -> str:
    return _MARKS[index] if index < len(_MARKS) else f"({index + 1})"


def _title(record: DemoRecord) -> str:
    model, machine = record.model, record.machine
    return (
        f"GPT-2 of {model['parameters']:,} parameters, batch {model['batch']} x "
        f"{model['sequence']} tokens, {record.codegen} codegen on {machine['device']}"
    )


def _legend(record: DemoRecord) -> str:
    base = record.rows[0]
    return (
        "budget: a fraction of the predicted peak without one. "
        "torch's: its own partitioner, at that activation_memory_budget.\n"
        "peak: most bytes that a forward and backward hold beyond weights and inputs.\n"
        f"step time: median of {len(base.step_seconds)} forwards and backwards taken in turns, "
        f"against {format_seconds(base.median_seconds)}.\n"
        "loss: every row starts from the same weights and has the same batches and dropout."
    )

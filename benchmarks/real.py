"""Real models under Inductor: the losses of three optimizer steps, plain and within budgets.

    python -m benchmarks.real [--record FILE] [--only MODEL]

Small models of transformers, peft and diffusers (`tests/_real.py`) are trained from the same
weights eagerly, by plain Inductor, and by gcpass at 0.6 of the unconstrained peak and at its floor,
without dropout. What the record holds already is not run again; `python -m benchmarks.cases` writes
it into `docs/correctness.md`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from _oracle import FLOOR, gcpass
from _real import MODELS, train

from benchmarks._record import where

RECORD = Path(__file__).parent / "results" / "real.json"
BUDGETS = (0.6, FLOOR)
ROWS = 64  # of a batch: activations are what is held, not the gradients
TEXT = """
## Real models

Three optimizer steps of small models of transformers, peft (`lora`) and diffusers (`diffusion`), from the same weights, without
dropout (`python -m benchmarks.real`, in fp32, {where}): the losses, what of the forward is recomputed at the two
budgets (of the largest graph), and how far the furthest loss is from plain Inductor's.

| model | eager | plain Inductor | gcpass at 0.6 | gcpass at its floor | recomputed | off by |
|---|---|---|---|---|---|---|
"""


def main(
    only: Annotated[str, typer.Option(help="A model, such as 'gpt2'.")] = "",
    record: Annotated[Path, typer.Option(help="Losses so far, added to.")] = RECORD,
) -> None:
    warnings.simplefilter("ignore")
    known = json.loads(record.read_text()) if record.exists() else {"models": {}}
    for name in MODELS:
        if only in name and name not in known["models"]:
            known["where"] = where()
            known["models"][name] = losses(name)
            record.write_text(json.dumps(known, indent=1) + "\n")
            typer.echo(line(name, known["models"][name]), err=True)
    typer.echo(section(known))


def losses(name: str) -> dict[str, Any]:
    """Of one model, by what compiled it; for gcpass its plans, too."""
    row: dict[str, Any] = {
        "eager": train(name, lambda model: model, rows=ROWS),
        "inductor": train(name, torch.compile, rows=ROWS),
    }
    for budget in BUDGETS:
        system = gcpass(budget, "inductor")
        row[f"gcpass {budget}"] = train(name, system.compiler, rows=ROWS)
        row[f"plans {budget}"] = [
            {
                "predicted_bytes": plan.predicted_peak_bytes,
                "budget_bytes": plan.budget_bytes,
                "recompute_ratio": plan.recompute_ratio,
            }
            for plan in system.plans
        ]
    return row


def section(record: dict[str, Any]) -> str:
    """The record as a section of a page."""
    made = record["where"]
    text = TEXT.format(where=f"torch {made['torch']}, {made['device']}, {made['date'][:10]}")
    text += "".join(line(name, row) + "\n" for name, row in record["models"].items())
    missing = [f"`{name}`" for name in MODELS if name not in record["models"]]
    return text + (f"\nNot run yet: {', '.join(missing)}.\n" if missing else "")


def line(name: str, row: dict[str, Any]) -> str:
    """One model in the table."""
    systems = ("eager", "inductor", *(f"gcpass {budget}" for budget in BUDGETS))
    off = max(
        abs(got - right) / abs(right)
        for system in systems[2:]
        for got, right in zip(row[system], row["inductor"], strict=True)
    )
    cells = [", ".join(f"{loss:.5f}" for loss in row[system]) for system in systems]
    plans = (row[f"plans {budget}"] for budget in BUDGETS)
    largest = (max(made, key=lambda plan: plan["predicted_bytes"]) for made in plans)
    recomputed = ", ".join(f"{plan['recompute_ratio']:.0%}" for plan in largest)
    return f"| `{name}` | {' | '.join(cells)} | {recomputed} | {off:.0e} |"


if __name__ == "__main__":
    typer.run(main)

"""Which training programs come out right: torch's own partitioner, and gcpass.

    python -m benchmarks.cases [--only KIND] [--out docs/correctness.md]

Runs every case of `tests/cases` under torch's partitioner without a budget and at its budgets, and
under gcpass without one, at 0.9, 0.7 and 0.5 of the peak and at its floor, op by op on the CPU, and
writes a table: how many are right, how many wrong, how many refused. A system's worst budget counts.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from _oracle import BUDGETS, STOCK, Judged, System, Verdict, gcpass, judge, perform, stock
from cases import CASES, Case

STOCK_BUDGETS = (0.9, 0.7, 0.5, 0.0)
_WORST = (Verdict.WRONG, Verdict.REFUSED, Verdict.RIGHT)
_HEADER = """# Right gradients, whatever the code looks like

Made by `python -m benchmarks.cases`: every case of `tests/cases`, run by torch {version}'s own
partitioner (`{stock}`) at its default, by the same at `activation_memory_budget` {budgets}, and
by gcpass without a budget, at 0.9, 0.7 and 0.5 of the unconstrained peak, and at its floor. Op by op
(`codegen="eager"`), on the CPU, in float64 where the case allows. *Wrong*: gradients, buffers or
calls differ from eager's or from an identity that must hold; the step holds more than the plan said;
or a budget raises the peak. *Refused*: an error. The worst budget counts.

| kind | cases | torch at its default | torch at budgets | gcpass |
|---|---|---|---|---|
"""


def main(
    only: Annotated[str, typer.Option(help="A kind, such as 'mutation'.")] = "",
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
) -> None:
    cases = [case for case in CASES if only in case.kind]
    found = {(c.kind, c.name): _columns(c) for c in cases}
    kinds = dict.fromkeys(c.kind for c in cases)
    text = _HEADER.format(
        version=torch.__version__, stock=STOCK, budgets=", ".join(map(str, STOCK_BUDGETS))
    )
    for kind in kinds:
        rows = [judged for (k, _), judged in found.items() if k == kind]
        text += f"| {kind} | {len(rows)} | " + " | ".join(map(_count, zip(*rows))) + " |\n"
    text += f"| all | {len(found)} | " + " | ".join(map(_count, zip(*found.values()))) + " |\n"
    for position, title in enumerate(("torch at its default", "torch at budgets", "gcpass")):
        bad = {k: row[position] for k, row in found.items() if row[position].why}
        text += f"\n## Not right: {title}\n\n" + "".join(
            f"- {kind}, `{name}`: {judged.verdict.value}: {_tidy(judged.why)}\n"
            for (kind, name), judged in bad.items()
        )
    if out is not None:
        out.write_text(text, encoding="utf-8")
    else:
        typer.echo(text)


def _columns(case: Case) -> tuple[Judged, Judged, Judged]:
    return (
        _worst(case, [stock(1.0)]),
        _worst(case, [stock(1.0), *map(stock, STOCK_BUDGETS)]),
        _worst(case, list(map(gcpass, BUDGETS))),
    )


def _worst(case: Case, systems: list[System]) -> Judged:
    """The worst verdict over the budgets; the first of them has none."""
    try:
        unbounded = perform(case, systems[0], weigh=True)
    except Exception as error:
        unbounded = None
        typer.echo(f"{case.name}: {systems[0].name}: {type(error).__name__}", err=True)
    systems[0].plans.clear()
    judged = [judge(case, system, unbounded) for system in systems]
    worst = min(judged, key=lambda j: _WORST.index(j.verdict))
    typer.echo(f"{case.kind}: {case.name}: {systems[-1].name}: {worst.verdict.value}", err=True)
    return worst


def _count(judged: tuple[Judged, ...]) -> str:
    counts = Counter(j.verdict for j in judged)
    return ", ".join(f"{counts[v]} {v.value}" for v in reversed(_WORST) if counts[v])


def _tidy(why: str) -> str:
    return why.split(" Traceback")[0].split(" Set TORCHDYNAMO")[0][:160].replace("|", "\\|")


if __name__ == "__main__":
    typer.run(main)

"""Which training programs come out right: torch's own partitioner, and gcpass.

    python -m benchmarks.cases [--only KIND] [--record FILE] [--out docs/correctness.md]

Runs every case of `tests/cases` under torch's partitioner at its default and at budgets, and under
gcpass without a budget, at half the memory and at its floor, op by op on the CPU, and writes a
table: how many are right, wrong, refused. A system's worst budget counts. What the record holds
already is not run again.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from _oracle import FLOOR, STOCK, Judged, System, Verdict, gcpass, judge, perform, stock
from cases import CASES, Case, Run

from benchmarks import real

TITLES = ("torch at its default", "torch at budgets", "gcpass")
STOCK_BUDGETS = (0.5, 0.0)
GCPASS_BUDGETS = (None, 0.5, FLOOR)
RECORD = Path(__file__).parent / "results" / "cases.json"
_WORST = (Verdict.WRONG, Verdict.REFUSED, Verdict.RIGHT)
_HEADER = """# Right gradients, whatever the code looks like

Made by `python -m benchmarks.cases`: every case of `tests/cases`, run by torch {version}'s own
partitioner (`{stock}`) at its default and at `activation_memory_budget` {budgets}, and
by gcpass without a budget, at half the unconstrained peak, and at its floor (the tests run the
first and the last; `pytest --slow` 0.9 and 0.7, too). Op by op (`codegen="eager"`), on the CPU, in
float64 where the case allows. *Wrong*: gradients, buffers or calls differ from eager's or from an
identity that must hold; the step holds more than the plan said; or a budget raises the peak.
*Refused*: an error. The worst budget counts.

Op by op, autograd's check of versions turns a late read of an overwritten tensor into an error.
Code that Inductor writes passes that check by: there the same plans of torch's partitioner return
wrong gradients without a word (pytorch#197039).

| kind | cases | {titles} |
|---|---|{rule}
"""

_FUZZ = """
## Random programs

`tests/fuzz` draws programs from a grammar: pointwise ops, products, reductions, views, indexing,
writes in place, buffers read and overwritten, random ops, ops with several results, weights used
again, and checkpointed regions, nested and with policies. A program is a frozen list of steps; its
Python source is what runs. It trains two steps in float64 at a random budget (none, a fraction,
the floor) under the optimiser, a named policy or a rule for each value. Results, gradients, inputs
and buffers must be those of the same steps run plainly, and what a loss's step holds must not
exceed the plan's peak. Programs that eager refuses, or plain compilation, are not counted.

The tests run 500 programs (a CPU second each), and (`--slow`) see three planted bugs found and made
small: a random op that is run again, an input read after it was overwritten, sizes taken for half.
Any number more:

    python -m benchmarks.fuzz --programs 1000 --seed 1000    # or --minutes 60

writes each fault, with the steps it needs, as a case of `tests/cases`. What the fuzz does not see:
the copy that autograd makes of a gradient whose strides are not its leaf's, and the gradients of
several results (both are made outside the compiled function); the policies `torch`, `torch:B`.

Found so far: the copy that ATen makes of a mask before it multiplies by it was in no plan
(`a_mask_multiplied_by_numbers`), nor what a sort holds beside the values (`one_row_in_order`); a
random op that the user's policy saves was run again at low budgets, with a wrong gradient
(`rows_drawn_in_a_region_that_saves_them`). About 625 programs were run so far, the seeds 0 to 499
among them on the day the last two were mended.
"""

Row = tuple[Judged, ...]


def main(
    only: Annotated[str, typer.Option(help="A kind, such as 'mutation'.")] = "",
    record: Annotated[Path, typer.Option(help="Verdicts so far, added to.")] = RECORD,
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
) -> None:
    cases = [case for case in CASES if only in case.kind]
    known = json.loads(record.read_text()) if record.exists() else {}
    for case in cases:
        if case.name not in known:
            known[case.name] = [(j.verdict.value, j.why) for j in _row(case)]
            record.write_text(json.dumps(known, indent=1))
            typer.echo(f"{case.kind}: {case.name}: {[v for v, _ in known[case.name]]}", err=True)
    rows = {c: tuple(Judged(Verdict(v), why) for v, why in known[c.name]) for c in cases}
    text = _document(rows)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    else:
        typer.echo(text)


def _row(case: Case) -> Row:
    default, *budgets = (stock(b) for b in (1.0, *STOCK_BUDGETS))
    unbounded = _weighed(case, stock(1.0))
    first = judge(case, default, unbounded)
    others = [judge(case, system, unbounded) for system in budgets]
    mine = _weighed(case, gcpass(None))
    return (
        first,
        _worst([first, *others]),
        _worst(judge(case, gcpass(budget), mine) for budget in GCPASS_BUDGETS),
    )


def _weighed(case: Case, system: System) -> Run | None:
    """The run without a budget, whose peak no budget may raise; None if it fails."""
    if not case.weighs:
        return None
    try:
        return perform(case, system, weigh=True)
    except Exception as error:
        typer.echo(f"{case.name}: {system.name}: {error!r:.99}", err=True)
        return None


def _worst(judged: Iterable[Judged]) -> Judged:
    return min(judged, key=lambda j: _WORST.index(j.verdict))


def _document(rows: dict[Case, Row]) -> str:
    text = _HEADER.format(
        version=torch.__version__,
        stock=STOCK,
        budgets=" and ".join(map(str, STOCK_BUDGETS)),
        titles=" | ".join(TITLES),
        rule="---|" * len(TITLES),
    )
    for kind in dict.fromkeys(case.kind for case in rows):
        text += _line(kind, [row for case, row in rows.items() if case.kind == kind])
    text += _line("all", list(rows.values()))
    if real.RECORD.exists():
        text += real.section(json.loads(real.RECORD.read_text()))
    text += _FUZZ
    for title, column in zip(TITLES, zip(*rows.values(), strict=True), strict=True):
        text += f"\n## Not right: {title}\n\n"
        text += "".join(
            f"- {case.kind}, `{case.name}`: {judged.verdict.value}: {_tidy(judged.why)}\n"
            for case, judged in zip(rows, column, strict=True)
            if judged.verdict is not Verdict.RIGHT
        )
    return text


def _line(kind: str, rows: Sequence[Row]) -> str:
    columns = " | ".join(map(_count, zip(*rows, strict=True)))
    return f"| {kind} | {len(rows)} | {columns} |\n"


def _count(judged: Iterable[Judged]) -> str:
    counts = Counter(j.verdict for j in judged)
    return ", ".join(f"{counts[v]} {v.value}" for v in reversed(_WORST) if counts[v])


def _tidy(why: str) -> str:
    return why.split(" Traceback")[0].split(" Set TORCHDYNAMO")[0][:160].replace("|", "\\|")


if __name__ == "__main__":
    typer.run(main)

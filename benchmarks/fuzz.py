"""Random training programs under gcpass, until a number or a time is reached.

    python -m benchmarks.fuzz [--programs N | --minutes M] [--seed S] [--settings K] [--out DIR]

The program of each seed (`tests/fuzz`) is judged without a budget and under K - 1 random settings,
op by op on the CPU in float64: results, gradients and buffers against eager's, peaks against the
plan. A faulty one is made as small as can be and written to DIR as a case of `tests/cases`.
Exit code 1 if there was one.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz import case_source, draw, find_fault, settings, shrunk


def main(
    programs: Annotated[int, typer.Option(help="How many; 0: until the time is over.")] = 0,
    minutes: Annotated[float, typer.Option(help="For how long; 0: until all are judged.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the first program; the next ones follow.")] = 1000,
    count: Annotated[int, typer.Option("--settings", help="How many each is judged under.")] = 3,
    out: Annotated[Path, typer.Option(help="Where cases are written.")] = Path("fuzz-cases"),
) -> None:
    if not programs and not minutes:
        programs = 500
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    seeds = itertools.islice(itertools.count(seed), programs or None)
    judged = faulty = 0
    for number in seeds:
        if time.monotonic() > end:
            break
        program = draw(number)
        fault = find_fault(program, settings(number, count))
        judged += 1
        if judged % 100 == 0:
            typer.echo(f"{judged} judged, {faulty} faulty", err=True)
        if fault is not None:
            faulty += 1
            typer.echo(f"seed {number}: {fault.why}")
            small, fault = shrunk(program, fault)
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"fuzz_{number}.py"
            path.write_text(case_source(small, fault, path.stem), encoding="utf-8")
            typer.echo(f"  {len(small.steps)} of {len(program.steps)} steps are left: {path}")
    typer.echo(f"{judged} programs of seeds {seed} to {seed + judged - 1}: {faulty} faulty")
    raise typer.Exit(1 if faulty else 0)


if __name__ == "__main__":
    typer.run(main)

"""``gcpass compare``: models under manual policies and under the optimiser, side by side."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gcpass._budget import parse_budget
from gcpass._cli._files import check_writable, load, write_text
from gcpass._cli._options import Codegen, Fake, Hardware, listed
from gcpass._cli._quiet import quiet_profiler
from gcpass._comparison import Comparison, ComparisonRow
from gcpass._errors import OptionError
from gcpass._report._comparison import comparison_table, draw_comparison, verdict
from gcpass.policies import find_policy

POLICIES = "none,full,per_block,sqrt,selective_attention,sac_matmul,torch"


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Each MODULE:CALLABLE that returns (fn, args), where fn(*args) is a loss, or "
            "zoo:NAME[:SIZE] of the benchmarks.",
        ),
    ],
    policies: Annotated[
        str, typer.Option(help="Manual policies, between commas; empty for none.")
    ] = POLICIES,
    budgets: Annotated[
        str, typer.Option(help="Budgets for the optimiser, between commas, besides none.")
    ] = "",
    at_peaks: Annotated[
        bool, typer.Option(help="Give the optimiser the peak of each policy as its budget, too.")
    ] = True,
    predict_only: Annotated[
        bool, typer.Option("--predict-only", help="Plan, and run nothing.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each row.")] = 7,
    seed: Annotated[int, typer.Option(help="Of the steps whose gradients are compared.")] = 0,
    codegen: Codegen = "inductor",
    hardware: Hardware = "auto",
    fake: Fake = False,
    jsonl: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a line that describes the run, and the rows."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as CSV.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw peak against time (needs matplotlib)."),
    ] = None,
) -> None:
    """Compare manual policies with the optimiser: peaks, step times and gradients."""
    named, bounds = listed(policies), listed(budgets)
    for name in named:
        find_policy(name)
    for bound in bounds:
        parse_budget(bound, where="--budgets")
    if fake and not predict_only:
        raise OptionError("--fake models hold no numbers to run: add --predict-only")
    for where, path in {"--jsonl": jsonl, "--csv": csv, "--plot": plot}.items():
        check_writable(path, where)
    quiet_profiler()
    from gcpass.fx import _comparison as work
    from gcpass.fx._devices import commit, machine

    setting = work.Setting(
        policies=tuple(named),
        budgets=tuple(bounds),
        at_peaks=at_peaks,
        codegen=codegen,
        hardware=hardware,
        steps=steps,
        seed=seed,
    )
    run = {
        "command": shlex.join(["gcpass", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "commit": commit(),
        **machine(),
        "codegen": codegen,
        "hardware": hardware,
        "steps": 0 if predict_only else steps,
        "seed": seed,
    }
    rows: list[ComparisonRow] = []
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("", total=None)
        for target in targets:
            bar.update(task, description=target)

            def said(what: str, target: str = target) -> None:
                bar.update(task, description=f"{target}: {what}")

            fn, args = load(target, fake=fake)
            rows += (work.predicted if predict_only else work.measured)(
                target, fn, args, setting, said
            )
            if jsonl is not None:  # what is done is not lost if the next one fails
                write_text(jsonl, Comparison(run, tuple(rows)).to_jsonl() + "\n", "--jsonl")
    made = Comparison(run, tuple(rows))
    if csv is not None:
        write_text(csv, made.to_csv(), "--csv")
    if plot is not None:
        draw_comparison(made, plot)
    Console().print(comparison_table(made))
    for line in verdict(made):
        typer.echo(line)

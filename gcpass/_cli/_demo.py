"""``gcpass demo``: budgets at work on a small GPT-2."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gcpass._cli._files import check_writable, show, write_json
from gcpass._cli._options import Json
from gcpass._cli._quiet import quiet_profiler
from gcpass._errors import OptionError

SEED = 0
_HIDDEN = typer.Option(hidden=True)


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller model and fewer rows: under three minutes.")
    ] = False,
    codegen: Annotated[
        str | None,
        typer.Option(help="inductor or eager; by default inductor where it can compile."),
    ] = None,
    json: Json = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each row.")] = 10,
    timed_steps: Annotated[int, typer.Option(min=1, help="Timed steps of each row.")] = 7,
    layers: Annotated[int | None, _HIDDEN] = None,
    width: Annotated[int | None, _HIDDEN] = None,
    sequence: Annotated[int | None, _HIDDEN] = None,
) -> None:
    """Train a small GPT-2 under several memory budgets, and compare peaks, times and losses."""
    quiet_profiler()
    check_writable(json, "--json")  # told before minutes of work
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        task = bar.add_task("importing torch", total=None)
        from gcpass.fx import _demo as work

        device = work.find_device()
        bar.update(task, description="looking for a compiler")
        chosen, said = _choose_codegen(codegen, device)
        for sentence in (work.describe_model(), said):
            if sentence:
                bar.console.print(sentence, highlight=False, markup=False)
        shape = work.QUICK if quick else work.FULL
        given = {"layers": layers, "width": width, "sequence": sequence}
        record = work.run_demo(
            replace(shape, **{name: value for name, value in given.items() if value}),
            work.QUICK_ROWS if quick else work.ROWS,
            codegen=chosen,
            device=device,
            seed=SEED,
            optimizer_steps=steps,
            timed_steps=timed_steps,
            progress=lambda done, total, text: bar.update(
                task, completed=done, total=total, description=text
            ),
        )
        bar.update(task, description="done")
    from gcpass._report._demo import demo_table

    write_json(json, record.to_json())
    show(json, demo_table(record))


def _choose_codegen(asked: str | None, device: str) -> tuple[str, str | None]:
    """The codegen, and a sentence if it is not the one that would have been best."""
    from gcpass.fx._demo import inductor_obstacle
    from gcpass.fx._options import check_codegen

    if asked is not None and check_codegen(asked) == "eager":
        return asked, None
    obstacle = inductor_obstacle(device)
    if obstacle is None:
        return "inductor", None
    if asked is not None:
        raise OptionError(
            f"--codegen inductor cannot be used: {obstacle}. Use --codegen eager instead."
        )
    return "eager", f"Inductor cannot compile here: {obstacle}. Going on with --codegen eager."

"""``gcpass frontier``: every useful plan of a user's training step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcpass._cli._files import load, write_json
from gcpass._cli._options import Codegen, Fake, Hardware, Target
from gcpass._report import check_writable
from gcpass._report._frontier import draw_frontier


def frontier(
    target: Target,
    points: Annotated[int, typer.Option(help="How many plans, at most.")] = 24,
    against: Annotated[
        str, typer.Option(help="Policies to compare with, between commas; empty for none.")
    ] = "full,torch:1,torch:0.5,torch:0.1",
    codegen: Codegen = "inductor",
    hardware: Hardware = "auto",
    fake: Fake = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plans here, too.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw peak against recomputation (needs matplotlib)."),
    ] = None,
) -> None:
    """Plan a training step at every peak it can have."""
    for name, path in (("--json", json), ("--plot", plot)):
        if path is not None:
            check_writable(path, f"{name} {path}")
    from gcpass.fx._plan_call import compare

    fn, args = load(target, fake=fake)
    policies = [p.strip() for p in against.split(",") if p.strip()]
    made = compare(
        fn, args, None, hardware=hardware, codegen=codegen, points=points, policies=policies
    )
    if json is not None:
        write_json(json, made.to_json())
    if plot is not None:
        draw_frontier(made, plot, target)
    typer.echo(made.summary())

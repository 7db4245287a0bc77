"""``gcpass frontier``: every useful plan of a user's training step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcpass._cli._files import check_writable, load, show, write_json
from gcpass._cli._options import Codegen, Fake, Hardware, Json, Target, listed
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
    json: Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw peak against recomputation (needs matplotlib)."),
    ] = None,
) -> None:
    """Plan a training step at every peak it can have."""
    check_writable(json, "--json")
    check_writable(plot, "--plot")
    from gcpass.fx._plan_call import compare

    fn, args = load(target, fake=fake)
    made = compare(
        fn, args, None, hardware=hardware, codegen=codegen, points=points, policies=listed(against)
    )
    write_json(json, made.to_json())
    if plot is not None:
        draw_frontier(made, plot, target)
    show(json, made.summary())

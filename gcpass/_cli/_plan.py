"""``gcpass plan``: the plan of a user's training step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gcpass._budget import parse_budget
from gcpass._cli._files import load, write_json
from gcpass._cli._options import Codegen, Fake, Hardware, Target
from gcpass._report import check_writable


def plan(
    target: Target,
    budget: Annotated[
        str | None,
        typer.Option(help="6GiB, bytes, a fraction such as 0.5 of the unbounded peak, or auto."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="A manual policy, such as none, full or torch:0.5.")
    ] = None,
    codegen: Codegen = "inductor",
    hardware: Hardware = "auto",
    fake: Fake = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan here, too.")
    ] = None,
) -> None:
    """Plan a training step without compiling or running it."""
    bound = parse_budget(budget, where="--budget")
    if json is not None:
        check_writable(json, f"--json {json}")
    import gcpass

    fn, args = load(target, fake=fake)
    made = gcpass.plan(
        fn, args, memory_budget=bound, policy=policy, codegen=codegen, hardware=hardware
    )
    if json is not None:
        write_json(json, replace(made, target=target).to_json())
    typer.echo(made.summary())

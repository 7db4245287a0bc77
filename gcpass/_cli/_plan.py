"""``gcpass plan``: the plan of a user's training step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from gcpass._budget import parse_budget
from gcpass._cli._files import load, write_json


def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CALLABLE",
            help="A module or a .py file, and the callable in it that returns (fn, args): "
            "fn(*args) is a loss.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(help="6GiB, bytes, a fraction such as 0.5 of the unbounded peak, or auto."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="A manual policy, such as none, full or torch:0.5.")
    ] = None,
    codegen: Annotated[
        str, typer.Option(help="Whose memory is predicted: inductor or eager.")
    ] = "inductor",
    hardware: Annotated[str, typer.Option(help="The cost model.")] = "auto",
    fake: Annotated[
        bool, typer.Option("--fake", help="Build model and inputs without memory.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan here, too.")
    ] = None,
) -> None:
    """Plan a training step without compiling or running it."""
    bound = parse_budget(budget, where="--budget")
    import gcpass

    with gcpass.fake_mode() if fake else contextlib.nullcontext():
        fn, args = load(target)
    made = gcpass.plan(
        fn, args, memory_budget=bound, policy=policy, codegen=codegen, hardware=hardware
    )
    if json is not None:
        write_json(json, made.to_json())
    typer.echo(made.summary())

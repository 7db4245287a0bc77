"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:CALLABLE",
        help="A module or a .py file, and the callable in it that returns (fn, args): "
        "fn(*args) is a loss.",
    ),
]
Codegen = Annotated[str, typer.Option(help="Whose memory is predicted: inductor or eager.")]
Hardware = Annotated[
    str,
    typer.Option(
        help="The cost model: auto (the device's profile), measured (ops are run), reference, a "
        "profile such as h100, or the path of one."
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(metavar="PLAN.json", help="A plan, as gcpass plan --json writes it."),
]
Fake = Annotated[bool, typer.Option("--fake", help="Build model and inputs without memory.")]

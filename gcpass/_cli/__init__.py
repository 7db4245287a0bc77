"""The command line: parse, load, call, render."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gcpass._cli._calibrate import calibrate
from gcpass._cli._compare import compare
from gcpass._cli._demo import demo
from gcpass._cli._explain import explain
from gcpass._cli._fit import fit
from gcpass._cli._frontier import frontier
from gcpass._cli._plan import plan
from gcpass._cli._report import report
from gcpass._errors import (
    CaptureError,
    GcpassError,
    InfeasibleBudget,
    OptionError,
    UnsupportedGraph,
)
from gcpass._version import __version__

app = typer.Typer(
    help="Plan which activations a PyTorch training step keeps, within a memory budget.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(plan)
app.command()(fit)
app.command()(explain)
app.command()(report)
app.command()(frontier)
app.command()(compare)
app.command()(calibrate)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gcpass {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


EXIT_CODES = (  # 2 is what typer exits with for options that it does not know
    (InfeasibleBudget, 3),
    ((OptionError, CaptureError, UnsupportedGraph), 2),
    (GcpassError, 1),
)


def main() -> None:
    """Run the command line; the one place where gcpass's errors become text and an exit code."""
    try:
        app()
    except GcpassError as error:
        print("gcpass: error:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
    except KeyboardInterrupt:
        sys.exit(130)

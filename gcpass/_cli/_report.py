"""``gcpass report``: a stored plan as a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gcpass._cli._files import check_writable, read_plan
from gcpass._cli._options import PlanFile
from gcpass._report._page import write_page


def report(
    plan: PlanFile,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
) -> None:
    """Draw a stored plan: memory over the step, decisions and why, as one HTML file."""
    check_writable(output, "--output")
    made = read_plan(plan)
    named = made if made.target else replace(made, target=plan.stem)
    write_page(named, output, f"--output {output}")
    typer.echo(f"written to {output}")

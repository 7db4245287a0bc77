"""``gcpass explain``: a stored plan's decisions, and all that is known of one of them."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gcpass._cli._files import read_plan, write_json
from gcpass._cli._options import PlanFile
from gcpass._errors import OptionError, did_you_mean
from gcpass._explain import Row, fold
from gcpass._plan import Plan
from gcpass._report import check_writable
from gcpass._report._explain import op_table, plan_tables


def explain(
    plan: PlanFile,
    op: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tell all about one op's value.")
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the rows as JSON, - for here, in place of text."),
    ] = None,
) -> None:
    """Say what a stored plan keeps and recomputes, and why."""
    to_file = json is not None and str(json) != "-"
    if json is not None and to_file:
        check_writable(json, f"--json {json}")
    made = read_plan(plan)
    rows = fold(made.rows()) if op is None else [_find(made, op)]
    if json is not None:
        text = json_module.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        if to_file:
            write_json(json, text)
        else:
            typer.echo(text)
        return
    console = Console(highlight=False)
    for part in plan_tables(made, rows) if op is None else op_table(made, rows[0]):
        console.print(part)


def _find(plan: Plan, name: str) -> Row:
    """The row of an op.

    Raises:
        OptionError: the plan has none of that name.
    """
    rows: Sequence[Row] = plan.rows()
    for row in rows:
        if row.op == name:
            return row
    if not rows:
        raise OptionError("the plan's file holds no decisions: plan again with gcpass plan --json")
    hint = did_you_mean(name, [row.op for row in rows])
    if hint.startswith("known"):
        hint = f"it has {len(rows)}, such as {max(rows, key=lambda r: r.nbytes).op!r}"
    raise OptionError(f"--op {name!r} is no op whose value the plan decides on; {hint}")

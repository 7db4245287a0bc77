"""``gcpass explain``: a stored plan's decisions, and all that is known of one of them."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Sequence
from typing import Annotated

import typer

from gcpass._cli._files import check_writable, read_plan, show, write_json
from gcpass._cli._options import Json, PlanFile
from gcpass._errors import OptionError, did_you_mean
from gcpass._explain import Row, fold
from gcpass._plan import Plan
from gcpass._report._explain import op_table, plan_tables


def explain(
    plan: PlanFile,
    op: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tell all about one op's value.")
    ] = None,
    json: Json = None,
) -> None:
    """Say what a stored plan keeps and recomputes, and why."""
    check_writable(json, "--json")
    made = read_plan(plan)
    rows = fold(made.rows()) if op is None else [_find(made, op)]
    write_json(json, json_module.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    for part in plan_tables(made, rows) if op is None else op_table(made, rows[0]):
        show(json, part)


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

"""Reporters: plain data in, text or files out."""

from __future__ import annotations

import sys
from pathlib import Path

from gcpass._errors import OptionError
from gcpass._plan import Plan


def write_report(plan: Plan, where: str) -> None:
    """Write a plan's summary to standard error (``"text"``), or its JSON to a file.

    Raises:
        OptionError: the file cannot be written.
    """
    if where == "text":
        print(plan.summary(), file=sys.stderr)
        return
    try:
        Path(where).write_text(plan.to_json())
    except OSError as error:
        raise OptionError(f"report={where!r} cannot be written: {error.strerror}") from error

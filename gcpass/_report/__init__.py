"""Reporters: plain data in, text or files out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gcpass._errors import OptionError
from gcpass._plan import Plan
from gcpass._report._page import write_page


def check_writable(path: Path, where: str) -> None:
    """Nothing, before any work, if a file can be written.

    Args:
        path: of the file.
        where: the option with the path, for the error.

    Raises:
        OptionError: it cannot be written.
    """
    reason = None
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "permission denied"
    if reason is not None:
        raise OptionError(f"{where} cannot be written: {reason}")


def write_report(plan: Plan, where: str) -> None:
    """Write a plan's summary to standard error (``"text"``), or its page or JSON to a file.

    A file whose name ends in ``.html`` is a page.

    Raises:
        OptionError: the file cannot be written.
    """
    if where == "text":
        print(plan.summary(), file=sys.stderr)
        return
    if where.lower().endswith(".html"):
        write_page(plan, Path(where), f"report={where!r}")
        return
    try:
        Path(where).write_text(plan.to_json())
    except OSError as error:
        raise OptionError(f"report={where!r} cannot be written: {error.strerror}") from error

"""What happens when planning fails inside a user's training: a report, and torch's own partition.

The report holds the error, the versions, the options and the joint graph (operators, shapes, data
types), and nothing of the user's: no tensor, no line of source.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import fx

from gcpass.fx import _meta
from gcpass.fx._call import packet_name

VARIABLE = "GCPASS_DEBUG_DIR"


def write_failure(
    error: Exception, joint: fx.GraphModule, options: str, versions: Mapping[str, str]
) -> Path | None:
    """Write a report on a failure, to be attached to an issue.

    Args:
        error: what went wrong.
        joint: the graph that was to be planned, unchanged.
        options: the checked options, as text.
        versions: of gcpass and torch.

    Returns:
        The file, in the folder that ``GCPASS_DEBUG_DIR`` names or else in the system's temporary
        one; None if it cannot be written. The same failure writes the same file.
    """
    lines = [
        *traceback.format_exception(error),
        "",
        *(f"{name} {version}" for name, version in versions.items()),
        f"python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"options: {options}",
        "",
        *map(_line, joint.graph.nodes),
    ]
    text = "\n".join(line.rstrip("\n") for line in lines) + "\n"
    folder = Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir()) / "gcpass")
    path = folder / f"failure-{hashlib.sha256(text.encode()).hexdigest()[:12]}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def _line(node: fx.Node) -> str:
    if node.op == "output":
        return f"return {node.args[0]}"
    arguments = ", ".join(
        [*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]
    )
    called = packet_name(node) if node.op == "call_function" else node.op
    return f"{node.name} = {called}({arguments})  # {_describe(_meta.value(node))}"


def _describe(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_describe, value))})"
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.shape)} on {value.device.type}"
    return type(value).__name__

"""Which ops draw random numbers."""

from __future__ import annotations

import torch
from torch import fx


def is_random(node: fx.Node) -> bool:
    """Whether a second run of ``node`` may return other numbers."""
    target = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    schema = getattr(target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":  # attention draws nothing without dropout
            given = (
                node.args[position]
                if position < len(node.args)
                else node.kwargs.get("dropout_p", argument.default_value)
            )
            return bool(given != 0)
    return True

"""Fusions of Inductor's that would undo the order of a plan.

A fused kernel runs when the last of its inputs is ready. Put a recomputed value into the kernel of
a reader that comes much later, and all its other readers wait for that kernel, with all that they
would have let go of: the gradients of T5's cross-attentions, which read what the encoder made,
waited for the end of the decoder's backward (235 MiB instead of 176). Inductor refuses to fuse two
readers of one value that are far apart; of a value and its reader it does not ask how far they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FAR = 64  # kernels: `are_long_distant_nodes` of Inductor's scheduler (torch 2.11 and 2.13)


def makes_others_wait(value: Any, reader: Any) -> bool:
    """Whether fusing a value with one of its readers keeps another reader waiting.

    Args:
        value: the scheduler's node, fused or not, that makes the value.
        reader: the scheduler's node that reads it.
    """
    inside = {node.get_name() for node in (*value.get_nodes(), *reader.get_nodes())}
    return any(
        reader.min_order - other.min_order > FAR
        for buffer in value.get_outputs()
        for other in _readers(buffer)
        if other.get_name() not in inside
    )


def _readers(buffer: Any) -> Iterator[Any]:
    for use in buffer.users:
        if not use.is_weak and hasattr(use.node, "min_order"):  # the graph's output has none
            yield use.node

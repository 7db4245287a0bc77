"""Training programs with right answers, by kind; `tests/_oracle.py` judges them."""

from . import (
    drift,
    graph_edges,
    higher_order_ops,
    mutation,
    peak,
    precision_and_loops,
    randomness,
    shapes,
    side_effects,
    tags_and_regions,
    wrong_tensor_kept,
)
from ._case import CASES, Case, Run

__all__ = ["CASES", "Case", "Run"]

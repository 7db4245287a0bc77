"""Training programs with right answers, by kind; `tests/_oracle.py` judges them."""

from importlib import import_module

from ._case import CASES, Case, Run

for _kind in (
    "mutation",
    "randomness",
    "wrong_tensor_kept",
    "peak",
    "tags_and_regions",
    "side_effects",
    "shapes",
    "graph_edges",
    "higher_order_ops",
    "precision_and_loops",
    "drift",
):
    import_module(f".{_kind}", __name__)

__all__ = ["CASES", "Case", "Run"]

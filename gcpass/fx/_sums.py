"""Sums that would keep a product waiting.

Of ``a @ b + c`` Inductor makes one library call, ``addmm``, in the place of the sum. A tied
embedding's gradient is such a sum: the product is of the gradient of the logits, at the start of
the backward, and the other term comes at its end. So the gradient of the logits, often the largest
tensor of all, would be held through the whole backward.
"""

from __future__ import annotations

import torch
from torch import fx

from gcpass.fx import _meta
from gcpass.fx._fusions import FAR


def keep_sums_apart(module: fx.GraphModule) -> None:
    """Let a product be made in its place although a sum with it comes much later.

    Inductor would make one ``addmm`` of both, in the place of the sum. It does not take
    ``prims.add`` for a sum, which adds the same numbers.
    """
    place = {node: i for i, node in enumerate(module.graph.nodes)}

    def waits(total: fx.Node) -> bool:
        far = (place[total] - place[term] > FAR for term in total.args if _is_product(term))
        return not total.kwargs and any(far) and _alike(total)

    sums = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    waiting = [total for total in sums if waits(total)]
    for total in waiting:
        total.target = torch.ops.prims.add.default
    if waiting:
        module.recompile()


def _alike(total: fx.Node) -> bool:
    """Whether the terms have one shape, known to be so, and one dtype, the sum's."""
    values = [_meta.value(n) if isinstance(n, fx.Node) else n for n in (total, *total.args)]
    kinds = [
        (v.dtype, *v.shape)
        for v in values
        if isinstance(v, torch.Tensor) and all(isinstance(size, int) for size in v.shape)
    ]
    return len(kinds) == len(values) and len(set(kinds)) == 1


def _is_product(term: object) -> bool:
    return isinstance(term, fx.Node) and term.target is torch.ops.aten.mm.default

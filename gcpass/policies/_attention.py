"""The parts of a model that selective recomputation looks for: attention's core, and matmuls."""

from __future__ import annotations

from collections.abc import Iterator

from gcpass._problem import Kernel, Problem

_PRODUCTS = ("aten.bmm", "aten.baddbmm", "aten.matmul")
_MATMULS = (
    *_PRODUCTS,
    "aten.mm",
    "aten.addmm",
    "aten.convolution",
    "aten._grouped_mm",
    "aten._scaled_mm",
    "flex_attention",
    "transformers.grouped_mm_fallback",
)
_SOFTMAX = ("aten._softmax", "aten._safe_softmax", "aten.exp", "aten.exp2")


def attention_cores(problem: Problem) -> list[frozenset[int]]:
    """For each unfused attention, the ops from the product QK^T to the weights that V is given.

    That is what Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
    Models", section 5) recompute. A fused attention keeps no weights, and has no such part.
    """
    cores = []
    for op in problem.forward_range:
        if problem.ops[op].target in _PRODUCTS:
            for weights in problem.ops[op].inputs:
                core = _core(problem, weights)
                if core:
                    cores.append(frozenset(core))
    return cores


def _core(problem: Problem, weights: int) -> set[int]:
    """What lies between a product and ``weights``, if a softmax is on the way; else nothing."""
    above: set[int] = set()
    stack = [weights]
    while stack:
        op = stack.pop()
        if op in above or op not in problem.forward_range:
            continue
        above.add(op)
        if _fuses(problem, op):
            stack += problem.ops[op].inputs
    from_product: set[int] = set()
    softmax = False
    for op in sorted(above):
        if problem.ops[op].target in _PRODUCTS:
            from_product.add(op)
        elif _fuses(problem, op) and from_product.intersection(problem.ops[op].inputs):
            from_product.add(op)
            softmax = softmax or problem.ops[op].target in _SOFTMAX
    return from_product if softmax and weights in from_product else set()


def _fuses(problem: Problem, op: int) -> bool:
    """Whether it is a view or runs inside other kernels."""
    return not problem.produced[op] or problem.ops[op].kernel is not Kernel.EXTERN


def matmuls(problem: Problem) -> Iterator[int]:
    """Matrix products, convolutions and fused attentions of the forward, in order."""
    for op in problem.forward_range:
        target = problem.ops[op].target
        if target in _MATMULS or "scaled_dot_product" in target:
            yield op

"""The policies that people place by hand today."""

from __future__ import annotations

import math

from gcpass._problem import Phase, Problem
from gcpass._solvers._cut import CutNetwork
from gcpass.policies._attention import attention_cores, matmuls
from gcpass.policies._blocks import find_blocks, grouped
from gcpass.policies._policy import Policy
from gcpass.policies._regions import holders, kept_around, kept_under


def _keep_everything(problem: Problem) -> frozenset[int]:
    """All that the forward computes anyway; what the backward does not read is not kept."""
    return frozenset(
        op
        for op, storage in problem.kept_storage.items()
        if problem.ops[problem.storages[storage].producer].phase is Phase.FORWARD
        or problem.ops[op].constraint is not None
    )


def _keep_nothing(problem: Problem) -> frozenset[int]:
    """Only what may not be recomputed, or the smallest values that stand for it."""
    return CutNetwork(problem, problem.forward_range, ()).smallest().kept


def _sqrt(problem: Problem) -> frozenset[int]:
    blocks = find_blocks(problem)
    segments = max(round(math.sqrt(len(blocks))), 1)
    size = max(math.ceil(len(blocks) / segments), 1)
    return kept_around(problem, grouped(problem, blocks, size))


def _selective_attention(problem: Problem) -> frozenset[int]:
    return kept_around(problem, attention_cores(problem))


NONE = Policy("none", _keep_everything)
FULL = Policy("full", _keep_nothing)
SQRT = Policy("sqrt", _sqrt)
SELECTIVE_ATTENTION = Policy("selective_attention", _selective_attention)


def every_k(count: int) -> Policy:
    """Every ``count`` blocks that follow each other are run again from the input of the first."""

    def choose(problem: Problem) -> frozenset[int]:
        return kept_around(problem, grouped(problem, find_blocks(problem), count))

    return Policy("per_block" if count == 1 else f"every_k:{count}", choose)


PER_BLOCK = every_k(1)


def sac_matmul(every: int = 1) -> Policy:
    """Of matrix products, convolutions and attentions one in ``every`` is kept; nothing else is."""

    def choose(problem: Problem) -> frozenset[int]:
        saved = list(matmuls(problem))[::every]
        keep = {holder for op in saved for holder in holders(problem, op)}
        return kept_under(problem, keep, problem.kept_storage.keys() - keep)

    return Policy("sac_matmul" if every == 1 else f"sac_matmul:{every}", choose)

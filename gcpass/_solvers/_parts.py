"""The parts in which two plans differ, and the plans that have some of them from either.

Two corners of a hull differ in parts that have nothing to do with each other: in each layer, say,
the one keeps an activation and the other what it is computed from, and at the loss the one keeps
logits in fp32 and the other in bf16. At the price where one corner takes over from the other all
parts are equally good for the bytes *kept*. For the *peak* they are not: a part of the loss, where
the peak is, may free twice what it keeps less. So parts are flipped in the order of

    worth(part) = peak freed by flipping it alone / time it costs,

parts of one kind (the same ops, sizes and choices: those of identical layers) from the first layer
to the last, as their first is worth, and as many as the budget asks for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

from networkx.utils import UnionFind

from gcpass._evaluate import Evaluator
from gcpass._solvers._solution import Found

Part = frozenset[int]


def parts(evaluator: Evaluator, fast: Found, small: Found) -> list[Part]:
    """What is kept in one of two plans alone, in connected groups, by position.

    Values are connected through the ops that only one of the plans recomputes.
    """
    inputs = [op.inputs for op in evaluator.problem.ops]
    differing = fast[0] ^ small[0]
    touched = differing | (set(fast[1].recomputed) ^ set(small[1].recomputed))
    groups = UnionFind(touched)
    for op in touched:
        groups.union(op, *touched.intersection(inputs[op]))
    found = (differing.intersection(group) for group in groups.to_sets())
    return sorted(filter(None, found), key=min)


def exchanged(
    evaluator: Evaluator, fast: Found, small: Found, budget: int, evaluations: int
) -> list[Found]:
    """Plans within the budget that have the parts of most worth from ``small``, as few as do.

    Args:
        evaluator: of the problem.
        fast: a plan over the budget.
        small: one within it.
        budget: bytes.
        evaluations: how many are spent at most.
    """
    kept, _ = fast
    kinds: defaultdict[object, list[Part]] = defaultdict(list)
    for part in parts(evaluator, fast, small):
        kinds[_kind(evaluator, kept, part)].append(part)
    bisections = sum(map(len, kinds.values())).bit_length()
    if len(kinds) + bisections > evaluations:
        return []
    ordered = sorted(kinds.values(), key=lambda alike: -_worth(evaluator, fast, alike[0]))
    order = [part for alike in ordered for part in alike]
    flipped = range(len(order) + 1)
    return bisect(
        evaluator, lambda n: kept ^ frozenset().union(*order[:n]), flipped, budget, bisections
    )


def bisect(
    evaluator: Evaluator,
    plan: Callable[[int], frozenset[int]],
    places: range,
    budget: int,
    evaluations: int,
) -> list[Found]:
    """Plans within the budget, found while looking for the first place from which on they are.

    Args:
        evaluator: of the problem.
        plan: what is kept, by place.
        places: the plan at the first exceeds the budget, and that at the last does not.
        budget: bytes.
        evaluations: how many are spent at most.
    """
    found: list[Found] = []
    low, high = places[0], places[-1]
    for _ in range(evaluations):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        kept = plan(middle)
        evaluation = evaluator.evaluate(kept)
        if evaluation.peak_nbytes <= budget and not evaluator.violations(kept):
            found.append((kept, evaluation))
            high = middle
        else:
            low = middle
    return found


def _kind(evaluator: Evaluator, kept: frozenset[int], part: Part) -> object:
    problem = evaluator.problem
    return tuple(
        (problem.ops[op].target, problem.keep_nbytes(op), op in kept) for op in sorted(part)
    )


def _worth(evaluator: Evaluator, fast: Found, part: Part) -> float:
    """Bytes of the peak for each picosecond; nothing if it frees none, or breaks a rule."""
    trial = fast[0] ^ part
    if evaluator.violations(trial):
        return 0.0
    evaluation = evaluator.evaluate(trial)
    freed = fast[1].peak_nbytes - evaluation.peak_nbytes
    time = evaluation.overhead_picoseconds - fast[1].overhead_picoseconds
    if freed <= 0:
        return 0.0
    return freed / time if time > 0 else math.inf

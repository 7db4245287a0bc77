"""Plans over the budget, less the values that free most of the peak for their time.

Between two corners of a hull lie plans that mix them, and nothing else: where a price flips values
of 448 MiB, a plan that is 90 MiB over the budget would give up one of those. What costs more for a
byte, but comes in smaller pieces, may be cheaper in all. So values are let go one after the other
in the order of

    worth(v) = bytes of the peak above the budget that letting go of v frees / time it costs,

which is evaluated anew each time, for values change each other's worth. In a deep model layers are
alike, so one value of every *kind* is tried, and of the best kind several go at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache

from gcpass._evaluate import Evaluator
from gcpass._solvers._solution import Found

_TRIED = 40  # values at each step
_NEAR = 3  # ops of a kind are alike so far back


def trimmed(evaluator: Evaluator, found: Found, budget: int, evaluations: int) -> tuple[Found, int]:
    """A plan less some of its values, as many as the budget asks for.

    Args:
        evaluator: of the problem.
        found: a plan over the budget.
        budget: bytes.
        evaluations: how many are spent at most.

    Returns:
        The plan, which may still be over the budget, and how many evaluations are left.
    """
    now = found
    while (excess := now[1].peak_nbytes - budget) > 0:
        kinds = _kinds(evaluator, now[0])
        if not kinds or evaluations < len(kinds):
            break
        evaluations -= len(kinds)
        firsts = [_without(evaluator, now, kind[:1], budget) for kind in kinds]
        worths = [worth for _, worth in firsts]
        best = worths.index(max(worths))
        if worths[best] <= 0:
            break
        after, kind = firsts[best][0], kinds[best]
        second = max((*worths[:best], *worths[best + 1 :]), default=0.0)
        many = min(-(-excess // (now[1].peak_nbytes - after[1].peak_nbytes)), len(kind))
        while many > 1 and evaluations:
            evaluations -= 1
            fewer, worth = _without(evaluator, now, kind[:many], budget)
            if worth > 0 and worth >= second:
                after = fewer
                break
            many //= 2
        now = after
    return now, evaluations


def _without(
    evaluator: Evaluator, found: Found, ops: Collection[int], budget: int
) -> tuple[Found, float]:
    """A plan less some values, and their worth; the plan as it is if that breaks a rule."""
    kept, evaluation = found[0].difference(ops), found[1]
    if evaluator.violations(kept):
        return found, 0.0
    fewer = evaluator.evaluate(kept)
    freed = evaluation.peak_nbytes - max(fewer.peak_nbytes, budget)
    time = fewer.overhead_picoseconds - evaluation.overhead_picoseconds
    return (kept, fewer), freed / (1 + max(time, 0))


def _kinds(evaluator: Evaluator, kept: frozenset[int]) -> list[list[int]]:
    """Values alike, from first layer to last: kinds that hold most, then further large values."""
    looks, size = _looks(evaluator), evaluator.problem.keep_nbytes
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for op in sorted(kept):
        alike[looks[op]].append(op)
    kinds = sorted(alike.values(), key=lambda kind: -sum(map(size, kind)))
    later = [kind[n:] for kind in kinds for n in range(1, len(kind))]
    return [*kinds, *sorted(later, key=lambda kind: -size(kind[0]))][:_TRIED]


@lru_cache(maxsize=4)
def _looks(evaluator: Evaluator) -> list[int]:
    """What each op is, in numbers: equal for ops of one target, size, time and kind of inputs."""
    problem = evaluator.problem
    ids: dict[object, int] = {}
    looks: list[int] = []
    for op in problem.ops:
        sizes = tuple(problem.storages[s].nbytes for s in op.storages)
        looks.append(ids.setdefault((op.target, op.picoseconds, sizes), len(ids)))
    for _ in range(_NEAR):
        seen = [(looks[i], *(looks[j] for j in op.inputs)) for i, op in enumerate(problem.ops)]
        looks = [ids.setdefault(look, len(ids)) for look in seen]
    return looks

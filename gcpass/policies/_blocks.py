"""The repeated blocks of a model: what people checkpoint one by one.

Blocks are read off the module paths: the children of the outermost numbered containers
(``layers.0``, ``layers.1``, ...) that are alike. Where no path says so they are the periods of the
longest stretch of the forward that repeats itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gcpass._problem import Phase, Problem

_ALIKE = 0.5  # two children are alike if they have more than this part of their ops in common


@dataclass(frozen=True)
class Block:
    """One repeated block.

    Attributes:
        container: the path of what holds it, such as ``"encoder.layers"``; empty if it was found
            without paths.
        ops: its ops of the forward range, in running order.
    """

    container: str
    ops: tuple[int, ...]


def find_blocks(problem: Problem) -> list[Block]:
    """The repeated blocks of the forward, in running order; none if nothing repeats."""
    placed = {op: tuple(path) for op in problem.forward_range if (path := _path(problem, op))}
    found = list(_children(problem, placed, 0)) or _periods(problem)
    return sorted(found, key=lambda block: block.ops[0])


def grouped(problem: Problem, blocks: Sequence[Block], count: int) -> list[frozenset[int]]:
    """The ops of every ``count`` blocks of one container that follow each other.

    What runs between two blocks of a group belongs to it.
    """
    owned = {op for block in blocks for op in block.ops}
    groups = []
    for container in dict.fromkeys(block.container for block in blocks):
        mine = [block for block in blocks if block.container == container]
        for start in range(0, len(mine), count):
            ops = {op for block in mine[start : start + count] for op in block.ops}
            between = range(min(ops), max(ops)) if count > 1 else ()
            groups.append(frozenset(ops.union(op for op in between if op not in owned)))
    return groups


# -- by module path -------------------------------------------------------------------------------


def _path(problem: Problem, op: int) -> list[str]:
    return problem.ops[op].module.split(".") if problem.ops[op].module else []


def _children(
    problem: Problem, placed: Mapping[int, tuple[str, ...]], depth: int
) -> Iterator[Block]:
    """The alike children of the outermost containers at or below ``depth`` of the paths."""
    containers: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for op, path in placed.items():
        number = next((i for i in range(depth, len(path)) if path[i].isdigit()), None)
        if number is not None:
            containers.setdefault(path[:number], {}).setdefault(path[number], []).append(op)
    for container, children in containers.items():
        alike = _alike(problem, list(children.values()))
        if alike:
            for ops in alike:
                yield Block(".".join(container), _filled(problem, ops))
        else:  # a Sequential of unlike parts: look into each
            inside = {op: placed[op] for ops in children.values() for op in ops}
            yield from _children(problem, inside, len(container) + 1)


def _alike(problem: Problem, children: list[list[int]]) -> list[list[int]]:
    """The children that run more than one op, and much the same as another of them."""
    counts = [
        Counter(problem.ops[op].target for op in ops if _works(problem, op)) for ops in children
    ]

    def like(a: Counter[str], b: Counter[str]) -> bool:
        return min(a.total(), b.total()) > 1 and (
            (a & b).total() > _ALIKE * max(a.total(), b.total())
        )

    return [
        ops
        for i, ops in enumerate(children)
        if any(like(counts[i], other) for j, other in enumerate(counts) if j != i)
    ]


def _works(problem: Problem, op: int) -> bool:
    return bool(problem.produced[op]) and problem.ops[op].phase is Phase.FORWARD


def _filled(problem: Problem, ops: list[int]) -> tuple[int, ...]:
    """With the ops in between that tracing lost the path of, as a rewritten attention has."""
    lost = (op for op in range(min(ops), max(ops)) if not problem.ops[op].module)
    return tuple(sorted({*ops, *lost}))


# -- by structure ---------------------------------------------------------------------------------


def _periods(problem: Problem) -> list[Block]:
    """The longest stretch of ops that repeats itself, cut where the fewest bytes cross."""
    ops = [op for op in problem.forward_range if _works(problem, op)]
    ids: dict[object, int] = {}
    kinds = np.array([ids.setdefault(_kind(problem, op), len(ids)) for op in ops])
    best = (0, 0, 0)  # ops covered, less the period, so that of equals the shortest wins; the start
    for period in range(1, len(ops) // 2 + 1):
        start, length = _longest_run(kinds[:-period] == kinds[period:])
        if length >= period:
            best = max(best, (length + period, -period, start))
    covered, period, start = best[0], -best[1], best[2]
    if not covered:
        return []
    crossing = _crossing_nbytes(problem)

    def starts(offset: int) -> list[int]:
        return [ops[p] for p in range(start + offset, start + covered, period)]

    first = min(map(starts, range(period)), key=lambda ops: sum(crossing[op] for op in ops))
    ends = [*first[1:], ops[start + covered - 1] + 1]
    return [Block("", tuple(range(a, b))) for a, b in zip(first, ends, strict=True)]


def _kind(problem: Problem, op: int) -> object:
    sizes = tuple(problem.storages[s].nbytes for s in problem.produced[op])
    return problem.ops[op].target, sizes, len(problem.ops[op].inputs)


def _longest_run(equal: np.ndarray) -> tuple[int, int]:
    """Where the longest run of True starts, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest] - starts[longest])


def _crossing_nbytes(problem: Problem) -> list[int]:
    """For each op, the bytes made before it that it or a later op of the forward reads."""
    change = [0] * (len(problem.ops) + 2)
    for storage, last in zip(problem.storages, problem.last_readers, strict=True):
        if storage.producer in problem.forward_range and last > storage.producer:
            change[storage.producer + 1] += storage.nbytes
            change[last + 1] -= storage.nbytes
    return list(accumulate(change))

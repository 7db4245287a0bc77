"""Two plans' parts: which they are, and in what order they are flipped."""

from __future__ import annotations

from dataclasses import replace

from gcpass._evaluate import Evaluator
from gcpass._problem import Kernel, Op, Phase, Problem, Storage
from gcpass._solvers import find_solver
from gcpass._solvers._corners import _between
from gcpass._solvers._parts import exchanged, parts

WORKSPACE = 1000  # of the first op of the backward, where the peak is
SLIM = (50, 20)  # bytes of what the two layers can be recomputed from; of the results: 100


def two_layers() -> Problem:
    """x -> a1 -> b1 -> m1 -> a2 -> b2 -> m2; the backward reads m2, b2, m1, b1, each b once.

    In each layer b can be recomputed from a, for the same time; a2 is slimmer than a1.
    """
    ops = [Op("x", "input", Phase.INPUT, (), (0,))]
    sizes = [8]

    def add(
        name: str, phase: Phase, reads: tuple[int, ...], nbytes: int, workspace: int = 0
    ) -> int:
        index = len(ops)
        ops.append(Op(name, name[0], phase, reads, (index,), 10, workspace_nbytes=workspace))
        sizes.append(nbytes)
        return index

    value, read = 0, []
    for layer, slim in enumerate(SLIM, start=1):
        a = add(f"a{layer}", Phase.FORWARD, (value,), slim)
        b = add(f"b{layer}", Phase.FORWARD, (a,), 100)
        value = add(f"m{layer}", Phase.FORWARD, (b,), 8)
        read += [b, value]
    gradient = add("g", Phase.BACKWARD, (read[-1],), 8, WORKSPACE)
    for index in reversed(read[:-1]):
        gradient = add(f"g{index}", Phase.BACKWARD, (gradient, index), 8)
    storages = tuple(Storage(nbytes, op, op) for op, nbytes in enumerate(sizes))
    return Problem(tuple(ops), storages, (), (gradient,))


PROBLEM = two_layers()
A1, B1, M1, A2, B2, M2 = range(1, 7)
FAST, SMALL = frozenset({B1, M1, B2, M2}), frozenset({A1, M1, A2, M2})


def test_layers_are_parts_of_their_own() -> None:
    evaluator = Evaluator(PROBLEM)
    fast, small = ((kept, evaluator.evaluate(kept)) for kept in (FAST, SMALL))
    assert parts(evaluator, fast, small) == [{A1, B1}, {A2, B2}]


def test_values_that_one_plan_recomputes_between_connect() -> None:
    evaluator = Evaluator(PROBLEM)
    fast, small = ((kept, evaluator.evaluate(kept)) for kept in (FAST, frozenset({A1, M2})))
    assert parts(evaluator, fast, small) == [{A1, B1, M1, B2}]


def test_the_part_that_frees_most_for_its_time_is_flipped_first() -> None:
    evaluator = Evaluator(PROBLEM)
    fast, small = ((kept, evaluator.evaluate(kept)) for kept in (FAST, SMALL))
    budget = fast[1].peak_nbytes - 60
    best = min(exchanged(evaluator, fast, small, budget, 100), key=lambda f: len(f[1].recomputed))
    assert best[0] == {B1, M1, A2, M2}
    assert best[1].peak_nbytes == fast[1].peak_nbytes - 80
    by_position = _between(evaluator, FAST, SMALL, budget, 100)
    assert all(len(e.recomputed) == 2 for _, e in by_position)


def test_nothing_is_flipped_where_too_few_evaluations_are_left() -> None:
    evaluator = Evaluator(PROBLEM)
    fast, small = ((kept, evaluator.evaluate(kept)) for kept in (FAST, SMALL))
    assert not exchanged(evaluator, fast, small, fast[1].peak_nbytes - 60, 2)


# -- without a budget ------------------------------------------------------------------------------


def wide(price: int) -> Problem:
    """Two slim values of 10 B that the backward reads, recomputed for ``price``, in a step of 2000.

    Each is made from a kept value of 1 B; the peak is the last op's, while both are alive.
    """
    ops = [Op("x", "input", Phase.INPUT, (), (0,))]
    sizes = [1]

    def add(phase: Phase, reads: tuple[int, ...], nbytes: int, time: int, kernel: Kernel) -> int:
        index = len(ops)
        ops.append(Op(f"o{index}", "f", phase, reads, (index,), time, kernel=kernel))
        sizes.append(nbytes)
        return index

    base = add(Phase.FORWARD, (0,), 1, 1000, Kernel.EXTERN)
    values = [add(Phase.FORWARD, (base,), 10, price, Kernel.EXTERN) for _ in range(2)]
    end = add(Phase.FORWARD, (base,), 1, 0, Kernel.EXTERN)
    gradient = add(Phase.BACKWARD, (end,), 40, 500, Kernel.EXTERN)
    small = add(Phase.BACKWARD, (gradient,), 1, 0, Kernel.EXTERN)
    for value in values:
        small = add(Phase.BACKWARD, (small, value), 1, 250, Kernel.EXTERN)
    storages = tuple(Storage(nbytes, op, op) for op, nbytes in enumerate(sizes))
    return Problem(tuple(ops), storages, (), (small,), "inductor")


def test_without_a_budget_memory_is_saved_where_it_takes_next_to_no_time() -> None:
    solver = find_solver("segments", certify=False)
    free, dear = (solver(Evaluator(wide(price)), None).evaluation for price in (4, 40))
    assert (free.recompute_picoseconds, dear.recompute_picoseconds) == (8, 0)
    assert free.peak_nbytes < dear.peak_nbytes - 10
    eager = replace(wide(4), codegen="eager")
    assert not solver(Evaluator(eager), None).evaluation.recompute_picoseconds

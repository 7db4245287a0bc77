"""The rules of fusion, one by one."""

from __future__ import annotations

import pytest

from gcpass._fusion import MAX_READS, MAX_SHARED_READS, fuse, writes_in_place
from gcpass._problem import Kernel, Op, Phase, Problem, Storage

P, E, R = Kernel.POINTWISE, Kernel.EXTERN, Kernel.REDUCTION


def problem(*ops: tuple[Kernel | None, tuple[int, ...]], codegen: str = "inductor") -> Problem:
    """Op i runs as ``ops[i][0]`` (None: a view of its first input) and reads ``ops[i][1]``."""
    built: list[Op] = []
    storages: list[Storage] = []
    for index, (kernel, reads) in enumerate(ops):
        if kernel is None:
            built.append(Op(f"o{index}", "view", Phase.FORWARD, reads, built[reads[0]].storages))
            continue
        storages.append(Storage(8, index, index))
        mine = (len(storages) - 1,)
        built.append(Op(f"o{index}", "f", Phase.FORWARD, reads, mine, kernel=kernel))
    return Problem(tuple(built), tuple(storages), (len(built) - 1,), (), codegen)


def fused(p: Problem, *held: int) -> set[int]:
    return set(fuse(p, range(len(p.ops)), lambda op: op in held).fused)


def test_a_pointwise_value_read_by_a_loop_gets_no_buffer() -> None:
    assert fused(problem((E, ()), (P, (0,)), (R, (1,))), 2) == {1}


def test_a_value_that_a_library_call_reads_gets_one() -> None:
    assert fused(problem((E, ()), (P, (0,)), (E, (1,))), 2) == set()


def test_one_reader_that_cannot_fuse_is_enough() -> None:
    assert fused(problem((E, ()), (P, (0,)), (P, (1,)), (E, (1, 2))), 3) == set()


def test_reductions_and_held_values_get_buffers() -> None:
    assert fused(problem((E, ()), (R, (0,)), (P, (1,))), 2) == set()
    assert fused(problem((E, ()), (P, (0,)), (P, (1,))), 1, 2) == set()


@pytest.mark.parametrize(("reader", "expected"), [(P, {1}), (E, set())])
def test_a_view_passes_the_question_on(reader: Kernel, expected: set[int]) -> None:
    assert fused(problem((E, ()), (P, (0,)), (None, (1,)), (reader, (2,))), 3) == expected


def test_a_kernel_reads_what_the_fused_op_would_have_read() -> None:
    p = problem((E, ()), (E, ()), (P, (0, 1)), (None, (2,)), (R, (3,)))
    fusion = fuse(p, range(5), lambda op: op == 4)
    assert fusion.sources[4] == {0, 1}


@pytest.mark.parametrize("readers", [1, 2])
def test_too_many_reads_need_a_buffer(readers: int) -> None:
    limit = MAX_READS if readers == 1 else MAX_SHARED_READS
    for count, expected in ((limit, True), (limit + 1, False)):
        sources = [(E, ())] * count
        ops = [*sources, (P, tuple(range(count))), *[(R, (count,))] * readers]
        assert (count in fused(problem(*ops), *range(count + 1, count + 1 + readers))) is expected


def test_eager_code_fuses_nothing() -> None:
    assert fused(problem((E, ()), (P, (0,)), (R, (1,)), codegen="eager"), 2) == set()


def test_a_fused_kernel_writes_over_what_dies_in_it() -> None:
    p = problem((E, ()), (P, (0,)), (E, (1,)))
    assert writes_in_place(p, 1, 8, [0])
    assert not writes_in_place(p, 1, 16, [0])
    assert not writes_in_place(p, 2, 8, [0])
    assert not writes_in_place(problem((E, ()), (P, (0,)), codegen="eager"), 1, 8, [0])

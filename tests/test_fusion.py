"""The rules of fusion, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gcpass._backward import Backward
from gcpass._fusion import MAX_READS, MAX_SHARED_READS, fuse, writes_in_place
from gcpass._problem import Kernel, Op, Phase, Problem, Storage
from gcpass._sweep import Fused

P, E, R, J = Kernel.POINTWISE, Kernel.EXTERN, Kernel.REDUCTION, Kernel.JOIN


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
    assert writes_in_place(p, 1, 8, [8])
    assert not writes_in_place(p, 1, 16, [8])
    assert not writes_in_place(p, 2, 8, [8])
    assert not writes_in_place(problem((E, ()), (P, (0,)), codegen="eager"), 1, 8, [8])


# -- rule 5: what a loop writes over ---------------------------------------------------------------


def test_a_kernel_writes_over_nothing_that_it_reduced() -> None:
    """As a norm's backward: o0 and o1 are read by sums that o4 reads, and by o4 itself."""
    p = problem((E, ()), (E, ()), (R, (0, 1)), (R, (2,)), (P, (0, 1, 3)), (E, (4,)))
    fusion = fuse(p, range(len(p.ops)), lambda op: op == 5)
    assert fusion.over(4, [0, 1]) == []
    other = problem((E, ()), (E, ()), (R, (1,)), (P, (0, 2)), (E, (3,)))
    assert fuse(other, range(len(other.ops)), lambda op: op == 4).over(3, [0, 1]) == [0]


def test_a_norms_backward_holds_its_gradient_beside_the_new_one() -> None:
    """The peak of a backward g -> sum(g) -> g - sum: both gradients are alive in the kernel."""
    kernels = ((E, ()), (E, (0,)), (R, (1,)), (P, (1, 2)), (E, (3,)))
    ops, storages = [], []
    for index, (kernel, reads) in enumerate(kernels):
        phase = Phase.BACKWARD if index else Phase.INPUT
        storages.append(Storage(1 if kernel is R else 8, index, index))
        ops.append(Op(f"o{index}", "f", phase, reads, (index,), kernel=kernel))
    p = Problem(tuple(ops), tuple(storages), (), (4,), "inductor")
    during = {step.op: step.base_during for step in Backward(p).steps}
    assert during[3] == 8 + 1 + 8
    unreduced = replace(p, ops=(*p.ops[:3], replace(p.ops[3], inputs=(1,)), p.ops[4]))
    assert {s.op: s.base_during for s in Backward(unreduced).steps}[3] == 8


# -- rule 4: joins ---------------------------------------------------------------------------------


def inside(p: Problem, *held: int) -> dict[int, int]:
    """Storage -> the storage that it is part of; op i has storage i."""
    return dict(fuse(p, range(len(p.ops)), lambda op: op in held).inside)


def test_what_only_a_join_reads_is_computed_in_it() -> None:
    p = problem((E, ()), (P, (0,)), (J, (1,)), (E, (2,)))
    assert fused(p, 3) == {1}
    assert inside(p, 3) == {}


def test_a_join_is_never_computed_inside_its_readers() -> None:
    assert fused(problem((E, ()), (J, (0,)), (P, (1,))), 2) == set()


def test_an_input_with_a_buffer_has_it_inside_the_join() -> None:
    assert inside(problem((E, ()), (P, (0,)), (J, (1,)), (E, (1, 2))), 3) == {1: 2}
    assert inside(problem((E, ()), (R, (0,)), (J, (1,)), (E, (2,))), 3) == {1: 2}
    assert inside(problem((E, ()), (P, (0,)), (J, (1,)), (E, (2,))), 1, 3) == {1: 2}


def test_what_a_library_call_makes_or_a_convolution_has_read_is_copied() -> None:
    assert inside(problem((E, ()), (J, (0,)), (E, (1,))), 2) == {}
    p = problem((E, ()), (P, (0,)), (E, (1,)), (J, (1,)), (E, (3,)))
    assert inside(p, 4) == {1: 3}
    ops = list(p.ops)
    ops[2] = replace(ops[2], target="aten.convolution")
    assert inside(replace(p, ops=tuple(ops)), 4) == {}


def test_an_input_of_two_joins_is_part_of_the_first() -> None:
    p = problem((E, ()), (P, (0,)), (J, (1,)), (J, (1,)), (E, (1, 2, 3)))
    assert inside(p, 4) == {1: 2}


def test_nothing_is_part_of_anything_where_nothing_fuses() -> None:
    p = problem((E, ()), (P, (0,)), (J, (1,)), (E, (1, 2)), codegen="eager")
    assert inside(p, 3) == {}


def test_a_part_is_alive_as_long_as_the_whole() -> None:
    """Op 1 (8 bytes) is inside op 2 (16); op 3 reads the join, and then op 4 (16) the part."""
    p = problem((E, ()), (P, (0,)), (J, (1,)), (E, (2,)), (E, (1,)), (E, (3, 4)))
    sizes = (8, 8, 16, 8, 16, 8)
    storages = (replace(s, nbytes=n) for s, n in zip(p.storages, sizes, strict=True))
    joined = replace(p, storages=tuple(storages))
    moment, parts = Fused(joined, Backward(joined)).forward(range(6), ())
    assert parts == {1: 2}
    assert moment.nbytes == 16 + 8 + 16  # at op 4
    apart = replace(joined, codegen="eager")
    assert Fused(apart, Backward(apart)).forward(range(6), ())[0].nbytes == 8 + 16 + 8


def test_a_view_of_a_fused_value_frees_nothing() -> None:
    """Neither in the forward nor in the backward's own values: it never had a buffer."""
    ops: list[tuple[Kernel | None, tuple[int, ...]]] = [
        (E, ()), (P, (0,)), (None, (1,)), (R, (2,)), (E, (3,)), (E, (0, 4)),
    ]  # fmt: skip
    p = problem(*ops)
    assert fused(p) == {1}
    assert Fused(p, Backward(p)).forward(range(6), ())[0].nbytes == 24  # ops 0, 3 and 4
    late = replace(
        p,
        ops=tuple(replace(op, phase=Phase.BACKWARD) for op in p.ops),
        outputs=(),
        gradients=(5,),
    )
    assert max(step.base_during for step in Backward(late).steps) == 24
    assert min(step.base_before for step in Backward(late).steps) == 0

"""Following the names of generated code: when each buffer is born, and when it dies."""

from __future__ import annotations

import pytest

from gcpass.fx._generated import Buffer, Generated, Run, Storage, run

MIB = 2**20
BUFFERS = {f"buf{i}": Buffer(MIB) for i in range(10)}


def follow(
    body: str, *arguments: int, buffers: dict[str, Buffer] | None = None, **how: object
) -> Run:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    code = Generated(f"def call(args):\n{lines}\n", {**BUFFERS, **(buffers or {})}, (), True)
    storages = [frozenset({Storage(nbytes)}) for nbytes in arguments]
    return run(code, storages, **how)  # pyright: ignore[reportArgumentType]


def test_a_buffer_lives_from_its_allocation_to_its_deletion() -> None:
    one_after_the_other = follow(
        """
buf0 = empty_strided_cpu((4,), (1,), torch.float32)
del buf0
buf1 = empty_strided_cpu((4,), (1,), torch.float32)
return (buf1, )
"""
    )
    assert one_after_the_other.peak_nbytes == MIB
    together = follow(
        """
buf0 = empty_strided_cpu((4,), (1,), torch.float32)
buf1 = empty_strided_cpu((4,), (1,), torch.float32)
cpp_fused_add_0(buf0, buf1)
del buf0
return (buf1, )
"""
    )
    assert together.peak_nbytes == 2 * MIB
    assert [sum(s.nbytes for s in output) for output in together.outputs] == [MIB]


@pytest.mark.parametrize(
    "reuse",
    ["buf1 = buf0; del buf0", "buf1 = reinterpret_tensor(buf0, (2, 2), (2, 1), 0); del buf0"],
)
def test_writing_over_a_buffer_takes_no_new_memory(reuse: str) -> None:
    written_over = follow(
        f"""
buf0 = empty_strided_cpu((4,), (1,), torch.float32)
{reuse}
buf2 = buf1.view(torch.int32)
return (buf2, )
"""
    )
    assert written_over.peak_nbytes == MIB


@pytest.mark.parametrize(("last", "peak"), [("del primals_1", 8 * MIB), ("pass", 15 * MIB)])
def test_an_input_is_let_go_after_its_last_use(last: str, peak: int) -> None:
    body = f"""
primals_1, tangents_1 = args
args.clear()
cpp_fused_0(primals_1)
{last}
buf0 = empty_strided_cpu((7,), (1,), torch.float32)
return (buf0, None, )
"""
    buffers = {"buf0": Buffer(7 * MIB)}
    assert follow(body, 7 * MIB, MIB, buffers=buffers).peak_nbytes == peak


def test_what_others_hold_survives_its_last_use() -> None:
    seen = Storage(7 * MIB)
    code = Generated(
        "def call(args):\n"
        "    add, = args\n"
        "    args.clear()\n"
        "    del add\n"
        "    buf0 = empty_strided_cpu((4,), (1,), torch.float32)\n"
        "    return (buf0, )\n",
        BUFFERS,
        (),
        True,
    )
    assert run(code, [frozenset({seen})]).peak_nbytes == 7 * MIB
    assert run(code, [frozenset({seen})], held=frozenset({seen})).peak_nbytes == 8 * MIB


def test_several_outputs_of_one_call_are_born_together_and_die_alone() -> None:
    body = """
buf0 = torch.ops.aten.convolution_backward.default(primals_1)
buf1 = buf0[0]
buf2 = buf0[1]
del buf0
del buf1
buf3 = empty_strided_cpu((4,), (1,), torch.float32)
return (buf2, buf3, )
"""
    assert follow(body, buffers={"buf0": Buffer(0)}).peak_nbytes == 2 * MIB
    needing = {"buf0": Buffer(0, nodes=("convolution_backward",))}
    workspaces = {"convolution_backward": 3 * MIB}
    assert follow(body, buffers=needing, workspaces=workspaces).peak_nbytes == 5 * MIB


def test_an_operator_that_returns_its_input_makes_nothing() -> None:
    body = """
buf0 = empty_strided_cpu((4,), (1,), torch.float32)
buf1 = torch.ops.mine.same.default(buf0)
del buf0
return (buf1, )
"""
    assert follow(body).peak_nbytes == 2 * MIB
    assert follow(body, buffers={"buf1": Buffer(MIB, aliases=("buf0",))}).peak_nbytes == MIB


def test_code_under_a_device_guard_and_in_branches_is_followed() -> None:
    body = """
with torch.cuda._DeviceGuard(0):
    stream0 = get_raw_stream(0)
    buf0 = empty_strided_cuda((4,), (1,), torch.float32)
    if True:
        buf1 = empty_strided_cuda((4,), (1,), torch.float32)
    return (buf0, )
"""
    assert follow(body).peak_nbytes == 2 * MIB


@pytest.mark.parametrize(
    ("argument", "copied"),
    [
        ("reinterpret_tensor(buf0, (1, 64, 64, 64), (524288, 1, 8192, 128), 0)", MIB),
        ("reinterpret_tensor(buf0, (2, 64, 64, 64), (262144, 1, 4096, 64), 0)", 0),
        ("reinterpret_tensor(buf0, (1, 64, s0, 64), (524288, 1, 8192, 128), 0)", 0),
        ("buf0", 0),
    ],
    ids=["a slice", "the whole", "symbolic", "itself"],
)
def test_a_convolution_copies_a_view_with_gaps(argument: str, copied: int) -> None:
    body = f"""
buf0 = empty_strided_cpu((2, 64, 64, 64), (262144, 1, 4096, 64), torch.float32)
buf1 = extern_kernels.convolution({argument}, primals_1, stride=(1, 1))
del buf0
return (buf1, )
"""
    buffers = {"buf0": Buffer(2 * MIB, itemsize=4)}
    assert follow(body, buffers=buffers).peak_nbytes == 3 * MIB + copied

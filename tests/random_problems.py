"""Random small problems: chains and DAGs of one storage an op, for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from gcpass._problem import Op, Phase, Problem, Storage


@st.composite
def problems(draw: st.DrawFn, most: int = 9, chain: bool | None = None) -> Problem:
    """A forward of up to ``most`` values and its backward, in the shape autograd gives it."""
    count = draw(st.integers(2, most))
    is_chain = draw(st.booleans()) if chain is None else chain
    reads = []
    for i in range(count):
        if is_chain or i == 0:
            reads.append([i])  # 0 is the input; value i is op i + 1
        else:
            extra = draw(st.lists(st.integers(0, i), min_size=1, max_size=3, unique=True))
            reads.append(sorted({*extra, i} if draw(st.booleans()) else set(extra)))
    sizes = [draw(st.integers(1, 20)) for _ in range(count)]
    times = [draw(st.integers(1, 20)) for _ in range(count)]
    return build_problem(reads, sizes, times)


def build_problem(reads: list[list[int]], sizes: list[int], times: list[int]) -> Problem:
    """Value i reads ``reads[i]`` (0: the input); the backward of each reads its inputs.

    Every value needs a gradient that its readers' backward steps produce.
    """
    count = len(sizes)
    used = {r for some in reads for r in some}
    ends = [i + 1 for i in range(count) if i + 1 not in used]
    ops = [Op("input", "placeholder", Phase.INPUT, (), ())]
    storages: list[Storage] = []
    for i in range(count):
        storages.append(Storage(sizes[i], i + 1, i + 1))
        ops.append(Op(f"v{i}", "f", Phase.FORWARD, tuple(reads[i]), (i,), times[i]))
    storages.append(Storage(1, len(ops), len(ops)))
    ops.append(Op("loss", "sum", Phase.FORWARD, tuple(ends), (len(storages) - 1,), 1))
    loss = len(ops) - 1
    storages.append(Storage(1, len(ops), None))
    ops.append(Op("tangent", "tangent", Phase.BACKWARD, (), (len(storages) - 1,)))
    gradient: dict[int, int] = {end: len(ops) - 1 for end in ends}
    for i in reversed(range(count)):
        value = i + 1
        inputs = tuple(dict.fromkeys((*reads[i], gradient.get(value, loss + 1))))
        storages.append(Storage(sizes[i], len(ops), None))
        ops.append(Op(f"g{i}", "f_backward", Phase.BACKWARD, inputs, (len(storages) - 1,), 1))
        for read in reads[i]:
            gradient[read] = len(ops) - 1
    return Problem(tuple(ops), tuple(storages), (loss,), (len(ops) - 1,))

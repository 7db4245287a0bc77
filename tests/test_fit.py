"""The search for the largest size, on made-up needs and on a tiny model."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcpass._estimate import Planner
from gcpass._fit import Fit, Need, _largest, search, sizing
from gcpass._training import Device, Training, state_heads
from gcpass._workload import Workload
from gcpass.fx._workload import Tracer

pytest.importorskip("transformers")


@settings(deadline=None, max_examples=200)
@given(
    fixed=st.integers(0, 10**6),
    slope=st.integers(1, 10**5),
    bend=st.floats(0.8, 1.2),
    room=st.integers(0, 10**8),
    most=st.integers(1, 5000),
)
def test_the_largest_size_is_found_wherever_it_is(
    fixed: int, slope: int, bend: float, room: int, most: int
) -> None:
    asked: list[int] = []

    def need(size: int) -> Need:
        asked.append(size)
        return Need(fixed + int(slope * size**bend), int(slope * size**bend))

    largest = _largest(need, room, most)
    fits = [n for n in range(1, most + 1) if fixed + int(slope * n**bend) <= room]
    assert largest == max(fits, default=0)
    assert max(asked) <= most and len(asked) == len(set(asked))


def test_a_line_is_followed_in_few_plans() -> None:
    asked: set[int] = set()

    def need(size: int) -> Need:
        asked.add(size)
        return Need(1000 + 37 * size, 40 * size)

    assert _largest(need, 1000 + 37 * 1234 + 5, 65536) == 1234
    assert len(asked) <= 5


@cache
def tracer() -> Tracer:
    """One for all tests: what it has traced it does not trace again."""
    return Tracer("h100", "eager", lambda target: pytest.fail(target))


def fit(memory: int, over: str = "batch", step: int = 1, most: int = 64) -> Fit:
    trace = tracer()
    training, device = Training(), Device(memory, 0)

    def workload(size: int) -> Workload:
        given = {"batch": size} if over == "batch" else {"seq": size}
        return Workload("hf:tiny-gpt2", ("n_layer=1",), **given)  # type: ignore[arg-type]

    of = sizing(trace, Workload("hf:tiny-gpt2", ("n_layer=1",)), over, training, device)
    found = search(of, memory, over, step=step, most=most)

    def needs(size: int) -> int:  # of a search of its own
        case = trace(workload(size))
        planner = Planner(case.problem)
        return (
            state_heads(training, case.sizes).total_nbytes + planner.smallest.predicted_peak_bytes
        )

    for size in range(step, found.largest + 2 * step, step):
        if size <= most and size in (found.largest, found.largest + step):
            assert (needs(size) <= memory) == (size <= found.largest)
    return found


def test_the_largest_batch_of_a_model() -> None:
    found = fit(500_000)
    assert found.largest > 1 and found.too_large is None
    sizes = [size for size, _ in found.rows]
    assert sizes == sorted(set(sizes)) and sizes[-1] == found.largest
    assert all(row.fits for _, row in found.rows)
    assert not found.rows[-1][1].is_free  # at the largest, something is recomputed
    throughputs = {size: row.samples_per_second for size, row in found.rows}
    assert found.fastest == max(throughputs, key=lambda size: throughputs[size])


def test_the_choices_for_one_size_are_tried_at_another() -> None:
    first, second = (
        Planner(tracer()(Workload("hf:tiny-gpt2", ("n_layer=1",), batch=batch)).problem)
        for batch in (4, 5)
    )
    second.know(first)
    room = first.smallest.predicted_peak_bytes * 5 // 4 + 4096  # blocks are rounded up
    plan = second.lean(room)
    assert plan.predicted_peak_bytes <= room and plan.kept == first.smallest.kept
    assert "smallest" not in vars(second)  # nothing was searched
    assert second.lean(1) is second.smallest


def test_the_longest_sequence_is_a_multiple_and_within_the_model() -> None:
    found = fit(2**40, "seq", step=16, most=64)
    assert found.largest == 64
    assert all(size % 16 == 0 for size, _ in found.rows)


def test_where_nothing_fits_the_smallest_size_is_shown() -> None:
    found = fit(10_000)
    assert found.largest == found.fastest == 0 and not found.rows
    assert found.too_large is not None and not found.too_large.fits

"""The heads of training memory against models that are really built, and ZeRO's arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gcpass._errors import OptionError
from gcpass._estimate import Case, Estimate, estimate
from gcpass._report._training import verdict
from gcpass._training import (
    Device,
    Sizes,
    Training,
    Unit,
    default_reserve,
    reduced_as_made,
    state_heads,
)
from gcpass._workload import Workload
from gcpass.fx._hf import default_dtype, find_architecture
from gcpass.fx._workload import Tracer, sizes_of

pytest.importorskip("transformers")

PLENTY = Device(2**40, 0)


def trace(**options: object) -> Case:
    tracer = Tracer("h100", "eager", lambda target: pytest.fail(target))
    return tracer(Workload("hf:tiny-llama", batch=2, dtype="float32", **options))  # type: ignore[arg-type]


def trace_fused() -> Case:
    tracer = Tracer("h100", "inductor", lambda target: pytest.fail(target))
    return tracer(Workload("hf:tiny-llama", batch=64))


@pytest.fixture(scope="module")
def case() -> Case:
    return trace()


def real_model(dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    architecture = find_architecture("tiny-llama")
    with default_dtype(dtype):
        model = architecture.build()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
        return model, architecture.inputs(2, 16, dtype)


def nbytes(tensors: object) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_those_of_a_model_that_has_made_a_step(dtype: torch.dtype) -> None:
    model, inputs = real_model(dtype)
    sizes = sizes_of([model], inputs)
    optimizer = torch.optim.AdamW(model.parameters())
    model(*inputs).backward()
    optimizer.step()
    parameters = list(model.parameters())
    assert sizes.whole.weights_nbytes == nbytes([*parameters, *model.buffers()])
    assert sizes.whole.gradients_nbytes == nbytes([p.grad for p in parameters])
    moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert Training("adamw").optimizer_nbytes(sizes) == nbytes(moments)
    assert sizes.inputs_nbytes == nbytes(inputs)


def test_master_weights_are_adam_on_an_fp32_copy(case: Case) -> None:
    model, _ = real_model(torch.bfloat16)
    copies = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.AdamW(copies)
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    optimizer.step()
    moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    made = Training("adamw", master_weights=True).optimizer_nbytes(case.sizes)
    assert made == nbytes(copies) + nbytes(moments) == 12 * case.sizes.trained


def test_the_two_moments_of_adamw8bit_take_little_more_than_two_bytes() -> None:
    sizes = Sizes(Unit(2 * 10**6, 2 * 10**6), Unit(), Unit(), 10**6, 10**6)
    made = Training("adamw8bit").optimizer_nbytes(sizes)
    assert 2 * 10**6 < made < 2.01 * 10**6
    assert Training("sgd").optimizer_nbytes(sizes) == Training("none").optimizer_nbytes(sizes) == 0


def test_blocks_and_the_rest_make_the_whole(case: Case) -> None:
    sizes = case.sizes
    assert 2 * sizes.block.weights_nbytes + sizes.rest.weights_nbytes == sizes.whole.weights_nbytes
    assert sizes.block.gradients_nbytes == sizes.block.weights_nbytes  # nothing is frozen


def test_zero_divides_as_its_paper_says() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, K = 12, on 64 devices."""
    parameters = 7_500_000_000
    # Units of no size: the figure counts only what is divided.
    sizes = Sizes(Unit(2 * parameters, 2 * parameters), Unit(), Unit(), parameters, parameters)

    def gigabytes(zero: int) -> float:
        training = Training("adamw", True, zero, 64 if zero else 1)
        state = state_heads(training, sizes)
        gradients = state.gradients_nbytes if zero >= 2 else 2 * parameters  # in the plan
        return (state.weights_nbytes + state.optimizer_nbytes + gradients) / 1e9

    assert [round(gigabytes(zero), 1) for zero in range(4)] == [120.0, 31.4, 16.6, 1.9]


def test_what_a_device_works_on_is_not_divided(case: Case) -> None:
    sizes = case.sizes
    far = Training("adamw", False, 3, 10**9)
    heads = state_heads(far, sizes)
    gathered = sizes.rest.weights_nbytes + 2 * sizes.block.weights_nbytes
    assert heads.weights_nbytes - gathered <= 1
    reduced = sizes.rest.gradients_nbytes + sizes.block.gradients_nbytes
    assert heads.gradients_nbytes - reduced <= 1


def test_heads_add_up_to_the_state_and_the_peak(case: Case) -> None:
    for zero in range(4):
        training = Training("adamw", True, zero, 8 if zero else 1)
        made = estimate(case, training, PLENTY, ("full",))
        for column in made.columns:
            assert column.plan is not None and column.heads is not None
            peak = column.plan.predicted_peak_bytes
            assert column.heads.total_nbytes == made.state.total_nbytes + peak


def test_reduced_gradients_are_counted_once(case: Case) -> None:
    reduced = reduced_as_made(case.problem)
    missing = sum(s.nbytes for s in case.problem.storages) - sum(s.nbytes for s in reduced.storages)
    # Blocks of CUDA's allocator are of 512 bytes, so at most that much more for each gradient.
    complete = case.sizes.whole.gradients_nbytes
    assert complete <= missing <= complete + 512 * len(case.problem.gradients)
    made = estimate(case, Training("none", zero=2, world_size=4), PLENTY, ())
    for column in made.columns:
        assert column.plan is not None and column.plan.peak.gradients_bytes == 0


def tight(case: Case, part: float, training: Training | None = None) -> Estimate:
    """With room for a part of what is between the smallest and the unbounded peak."""
    training = training or Training()
    planner = case.planner(training)
    low = planner.smallest.predicted_peak_bytes
    high = planner.keeping_all.predicted_peak_bytes
    room = state_heads(training, case.sizes).total_nbytes + int(low + part * (high - low))
    return estimate(case, training, Device(room, 0), ("full", "no_such_policy"))


def test_where_there_is_room_nothing_is_recomputed(case: Case) -> None:
    made = tight(case, 1.0)
    assert made.fits and made.is_free and made.overhead == 0
    assert made.best.plan is not None and made.best.plan.recompute_seconds == 0
    assert "No recomputation is needed (" in verdict(made)


def test_what_is_recomputed_without_need_is_said_to_be_faster() -> None:
    made = estimate(trace_fused(), Training(), PLENTY)
    assert made.is_free and made.best.plan is not None and made.best.plan.recompute_ratio > 0
    assert made.best.step_seconds < made.keeping_all.step_seconds
    assert "what gcpass recomputes takes next to no time" in verdict(made)


def test_where_there_is_less_the_cheapest_plan_fits(case: Case) -> None:
    made = tight(case, 0.5)
    assert made.fits and not made.is_free
    assert made.best.plan is not None and made.best.heads is not None
    assert made.best.heads.total_nbytes <= made.device.usable_nbytes
    assert made.best.plan.recompute_seconds > 0 and made.best.plan.gap >= 0
    full, unknown = made.columns[2:]
    assert full.plan is not None and full.plan.recompute_seconds > made.best.plan.recompute_seconds
    assert unknown.plan is None and not unknown.fits


def test_where_nothing_fits_the_smallest_peak_is_shown(case: Case) -> None:
    made = tight(case, -0.1)
    assert not made.fits
    assert made.best.plan == case.planner(made.training).smallest


def test_the_optimizer_step_is_part_of_the_time(case: Case) -> None:
    quick, slow = Training("none"), Training("adamw", True)
    a, b = (estimate(case, t, PLENTY, ()).best.step_seconds for t in (quick, slow))
    seconds = 2 * 12 * case.sizes.trained / case.bytes_per_second
    assert b - a == pytest.approx(seconds)


def test_spread_sequences_are_traced_at_their_part(case: Case) -> None:
    spread = trace(seq=32, sequence_parallel=2)
    assert spread.seq == 32
    assert spread.problem == trace(seq=16).problem
    training = Training()
    one, two = (estimate(c, training, PLENTY, ()) for c in (case, spread))
    # Two devices for a sequence twice as long: half as many sequences from each.
    assert two.samples_per_second == pytest.approx(one.samples_per_second / 2)


def test_the_reserve_has_a_floor_and_a_part() -> None:
    assert default_reserve(80 * 2**30) == 2**30 + int(0.02 * 80 * 2**30)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam"}, "'adamw'"),
        ({"zero": 4, "world_size": 2}, "--zero 4"),
        ({"zero": 1}, "--world-size"),
        ({"world_size": 0}, "--world-size 0"),
    ],
)
def test_a_wrong_way_of_training_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError) as error:
        Training(**options)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_the_users_own_model_is_found(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    x = torch.randn(4, 8)

    class Holder:
        def __init__(self) -> None:
            self.inner = model

        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sum()

    for fn in (model, lambda x: model(x).square().mean(), model.forward):
        case = Tracer("h100", "eager", lambda _, fn=fn: (fn, (x,)))(Workload("a:b"))
        assert case.sizes.trained == 72 and case.sizes.inputs_nbytes == 128
    with pytest.raises(OptionError, match="no nn"):
        Tracer("h100", "eager", lambda _: (Holder().loss, (x,)))(Workload("a:b"))
    assert replace(case, batch=3).planner(Training()) is not case.planner(Training())

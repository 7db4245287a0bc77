"""Predictions against what the allocator really does, through the public functions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gcpass
from benchmarks.models import build

# Not the convolutional ones: of eight channels oneDNN's padded copies are most of the memory.
MODELS = ("vit", "gpt2", "llama")


def network(width: int = 128, layers: int = 6) -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*parts, nn.Linear(width, 1))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("budget", [None, 0.7])
def test_the_eager_prediction_is_the_allocators_figure(name: str, budget: float | None) -> None:
    fn, args = build(name, "tiny")
    measured = gcpass.measure(fn, args, codegen="eager", memory_budget=budget, steps=1)
    assert measured.predicted_peak_bytes is not None
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02)


def test_torchs_own_partition_is_predicted_in_its_own_order() -> None:
    fn, args = build("llama", "tiny")
    measured = gcpass.measure(fn, args, codegen="eager", policy="torch:0.3", steps=1)
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02)


def test_a_step_is_timed_as_often_as_asked() -> None:
    model = network()
    measured = gcpass.measure(
        lambda x: model(x).sum(), (torch.randn(64, 128),), codegen="eager", steps=3
    )
    assert len(measured.seconds_all) == 3
    assert min(measured.seconds_all) <= measured.seconds_median <= max(measured.seconds_all)
    assert all(p.grad is None for p in model.parameters())


def test_tensors_are_summed_where_no_loss_is_returned() -> None:
    model = network()
    data = torch.randn(64, 128)
    plan = gcpass.plan(lambda x: (model(x), model[0](x)), (data,), codegen="eager")
    assert plan.predicted_peak_bytes > 0


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_steps_must_be_a_positive_number(steps: object) -> None:
    with pytest.raises(gcpass.OptionError, match="steps="):
        gcpass.measure(network(), (torch.randn(2, 128),), steps=steps)  # type: ignore[arg-type]


def test_a_model_of_any_size_is_planned_without_its_memory() -> None:
    """24 layers of width 16384 in bf16: 12 GiB of parameters, 24 GiB of activations."""
    with gcpass.fake_mode():
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(16384, 16384), nn.GELU()) for _ in range(24))
        ).bfloat16()
        data = torch.randn(16384, 16384, dtype=torch.bfloat16)
    plan = gcpass.plan(
        lambda x: model(x).float().square().mean(),
        (data,),
        codegen="eager",
        memory_budget="20GiB",
        hardware="reference",
    )
    assert plan.predicted_peak_bytes <= 20 * 2**30
    assert 0 < plan.recompute_ratio < 0.6


def test_tied_parameters_stay_tied_when_converted_under_fake_mode() -> None:
    with gcpass.fake_mode():
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        second.weight = first.weight
        both = nn.ModuleList([first, second]).bfloat16()
    assert both[0].weight is both[1].weight
    assert both[0].weight.dtype is torch.bfloat16
    assert nn.Linear(2, 2).bfloat16().weight.dtype is torch.bfloat16  # outside: torch's own again


@pytest.mark.inductor
@pytest.mark.parametrize("budget", [None, 0.6])
def test_inductors_peak_is_predicted_and_bounded(budget: float | None) -> None:
    model = network(width=256, layers=6)
    data = torch.randn(4096, 256)
    measured = gcpass.measure(lambda x: model(x).sum(), (data,), memory_budget=budget, steps=1)
    assert measured.predicted_peak_bytes is not None
    close = 0.1 if budget is None else 0.01  # with a budget Inductor's own code is read
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=close)
    if budget is not None:
        plan = gcpass.plan(lambda x: model(x).sum(), (data,))
        assert measured.peak_bytes <= budget * plan.predicted_peak_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_budget_is_kept_on_a_cuda_device() -> None:
    model = network(width=1024, layers=8)
    data = torch.randn(8192, 1024)
    free = gcpass.measure(model, (data,), device="cuda")
    tight = gcpass.measure(model, (data.cuda(),), memory_budget=int(0.7 * free.peak_bytes))
    assert tight.peak_bytes <= 0.7 * free.peak_bytes


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "huber_loss"])
def test_a_loss_whose_block_is_that_of_all_its_elements_is_counted(loss: str) -> None:
    weight = torch.ones(512, requires_grad=True)
    data = torch.randn(1024, 512)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return getattr(nn.functional, loss)(x * weight, x.sign())

    measured = gcpass.measure(fn, (data,), codegen="eager", steps=1)
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=0.001)


def test_a_convolution_copies_a_slice_of_a_larger_gradient() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([first(x), second(x)], dim=1).square().sum()

    data = torch.randn(4, 32, 64, 64, requires_grad=True)
    measured = gcpass.measure(fn, (data,), codegen="eager", steps=1)
    assert measured.predicted_peak_bytes == pytest.approx(measured.peak_bytes, rel=0.005)

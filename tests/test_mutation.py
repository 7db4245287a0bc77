"""Values that the forward overwrites: the backward must see them as they were when read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _training import BUDGETS, FULL, assert_same, compare_with_eager, compiled, gradients
from torch import Tensor, nn

pytestmark = [
    pytest.mark.filterwarnings("error:gcpass cannot plan"),
    pytest.mark.filterwarnings("ignore:gcpass. memory_budget"),
]

SETTINGS = {**BUDGETS, "full": FULL, "none": {"policy": "none"}}
CODEGENS = ["eager", pytest.param("inductor", marks=pytest.mark.inductor)]
every_setting = pytest.mark.parametrize("setting", SETTINGS)
few_settings = pytest.mark.parametrize("setting", ["unbounded", "0.6", "floor", "full"])


def trained_and_overwritten() -> tuple[Tensor, Tensor]:
    """An input that wants a gradient, and one that the function overwrites; both [4, 8]."""
    return torch.randn(4, 8, requires_grad=True), torch.rand(4, 8)


class OverwrittenScale(nn.Module):
    """pytorch#197039: the scale is read twice, then overwritten; the backward wants the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.register_buffer("scale", torch.full((16,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x @ self.weight) * torch.exp(self.scale)
        loss = (y * torch.exp(self.scale)).square().sum()
        with torch.no_grad():
            self.scale += 1
        return loss


@pytest.mark.parametrize("codegen", CODEGENS)
@every_setting
def test_a_buffer_overwritten_after_it_was_read(setting: str, codegen: str) -> None:
    """Loss, gradients and the buffer over three steps are eager's."""

    def run(compile_it: bool) -> list[Any]:
        torch.manual_seed(0)
        fn = OverwrittenScale().double()
        x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
        call = compiled(fn, SETTINGS[setting], codegen) if compile_it else fn
        steps = [gradients(call, (x,), [x, fn.weight]) for _ in range(3)]
        return [steps, fn.scale]

    got, expected = run(True), run(False)
    for a, b in zip(got[0], expected[0], strict=True):
        assert_same(a, b)
    torch.testing.assert_close(got[1], expected[1])
    first, last = expected[0][0][1][0].norm(), expected[0][2][1][0].norm()
    assert last > 10 * first  # so a re-read of the new scale could not pass


class NormStack(nn.Module):
    """Convolutions with batch norms; three steps move the running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                layer
                for _ in range(3)
                for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


@pytest.mark.parametrize("codegen", CODEGENS)
@every_setting
def test_running_statistics_move_once_a_step(setting: str, codegen: str) -> None:
    """Recomputed or not, a batch norm updates its statistics exactly once."""
    if codegen == "inductor" and setting not in ("0.6", "floor", "full"):
        pytest.skip("compiling is slow: fewer settings with Inductor")

    def run(compile_it: bool) -> tuple[list[Any], nn.Module]:
        torch.manual_seed(0)
        fn, batches = NormStack(), torch.randn(3, 4, 4, 8, 8)
        call = compiled(fn, SETTINGS[setting], codegen) if compile_it else fn
        return [gradients(call, (batch,), fn) for batch in batches], fn

    got, expected = run(True), run(False)
    for a, b in zip(got[0], expected[0], strict=True):
        assert_same(a, b)
    assert expected[1].layers[1].num_batches_tracked == 3
    torch.testing.assert_close(dict(got[1].named_buffers()), dict(expected[1].named_buffers()))


@few_settings
@pytest.mark.parametrize("codegen", CODEGENS)
def test_a_view_of_an_overwritten_input_is_read_by_the_backward(setting: str, codegen: str) -> None:
    def fn(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        row = s[1]  # a view: its storage changes below
        y = torch.tanh(x @ w) * row.exp()
        z = (y * row.cos()).sin()
        s.mul_(3)
        return z * 2

    compare_with_eager(
        lambda: (
            torch.randn(4, 8, requires_grad=True),
            torch.randn(8, 8, requires_grad=True),
            torch.rand(3, 8),
        ),
        fn,
        SETTINGS[setting],
        codegen,
    )


@few_settings
def test_an_overwritten_view_of_an_input(setting: str) -> None:
    """Only a part of the input is overwritten, through a view, after the whole was read."""

    def fn(x: Tensor, s: Tensor) -> Tensor:
        y = (x * s.exp()).tanh()
        s[0].add_(1)
        return y * s.exp()

    compare_with_eager(
        lambda: (torch.randn(3, 8, requires_grad=True), torch.rand(3, 8)), fn, SETTINGS[setting]
    )


@few_settings
@pytest.mark.parametrize("codegen", CODEGENS)
def test_an_input_is_read_before_and_after_it_is_overwritten(setting: str, codegen: str) -> None:
    def fn(x: Tensor, s: Tensor) -> Tensor:
        before = (x * s.exp()).tanh() * s.cos()
        s.add_(1)
        between = (before * s.exp()).sigmoid() * s.sin()
        s.mul_(0.5)
        return (between * s.exp()).sin() * s.cos()

    compare_with_eager(trained_and_overwritten, fn, SETTINGS[setting], codegen)


@few_settings
@pytest.mark.parametrize("codegen", CODEGENS)
def test_a_copy_made_before_the_overwriting_stays_a_copy(setting: str, codegen: str) -> None:
    """The backward reads the input itself, as it was: only a copy of it can tell."""

    def fn(x: Tensor, s: Tensor) -> Tensor:
        old = s.clone()
        y = (x * old).tanh() * old
        s.add_(1)
        return y * 2

    compare_with_eager(trained_and_overwritten, fn, SETTINGS[setting], codegen)


@few_settings
def test_a_saved_input_is_overwritten_by_a_value_of_the_forward(setting: str) -> None:
    """A moving average: the new state is computed from values the backward wants too."""

    def fn(x: Tensor, w: Tensor, state: Tensor) -> Tensor:
        hidden = (x @ w).tanh()
        normed = hidden / (state + 1)  # saves the sum, which may not be recomputed later
        with torch.no_grad():
            state.lerp_(hidden.abs().mean(0), 0.5)
        return (normed * state.exp()).exp()

    compare_with_eager(
        lambda: (
            torch.randn(4, 8, requires_grad=True),
            torch.randn(8, 8, requires_grad=True),
            torch.rand(8),
        ),
        fn,
        SETTINGS[setting],
    )


@few_settings
def test_an_overwritten_input_that_is_part_of_the_gradient(setting: str) -> None:
    """The mutated input is itself computed from a leaf, so its new value carries a gradient."""

    def inner(x: Tensor, h: Tensor) -> Tensor:
        y = (x * h.exp()).tanh()
        h.add_(x.exp())
        return y * h.cos()

    call = compiled(inner, SETTINGS[setting])

    def run(fn: Any) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        x, leaf = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
        return gradients(lambda a, b: fn(a, b * 2).square().sum(), (x, leaf), [x, leaf])

    assert_same(run(call), run(inner))


@few_settings
def test_a_parameter_is_clipped_after_it_was_read(setting: str) -> None:
    """A leaf that needs a gradient is overwritten under no_grad."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w.exp()).tanh()
        with torch.no_grad():
            w.clamp_(max=0.1)
        return (y @ w.cos()).sin()

    compare_with_eager(
        lambda: (torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)),
        fn,
        SETTINGS[setting],
    )

"""What the caller gets back: outputs that share memory, a loss computed outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _training import BUDGETS, FLOOR, FULL, assert_same, compare_with_eager, compiled, gradients
from torch import Tensor, nn

pytestmark = [
    pytest.mark.filterwarnings("error:gcpass cannot plan"),
    pytest.mark.filterwarnings("ignore:gcpass. memory_budget"),
]

SETTINGS = {"unbounded": {}, "0.6": BUDGETS["0.6"], "floor": FLOOR, "full": FULL}
few_settings = pytest.mark.parametrize("setting", SETTINGS)

OUTPUTS = {
    "alias_of_an_input": lambda x, w: (x.view(-1), (x @ w).tanh().sin()),
    "input_itself": lambda x, w: (w, (x @ w).exp().sin()),
    "two_views_of_one_value": lambda x, w: ((h := (x @ w).tanh().sin())[0], h.t()),
    "same_value_twice": lambda x, w: ((h := (x @ w).tanh().sin()), h),
    "value_and_its_reader": lambda x, w: ((h := (x @ w).tanh()), h.sin() * 2, h[1:].exp()),
    "detached": lambda x, w: ((h := (x @ w).tanh()).detach(), h.sin().square()),
}


@pytest.mark.parametrize(
    ("codegen", "setting"),
    [
        *(("eager", setting) for setting in SETTINGS),
        pytest.param("inductor", "floor", marks=pytest.mark.inductor),
    ],
)
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_outputs_that_share_memory(outputs: str, codegen: str, setting: str) -> None:
    def make() -> tuple[Tensor, ...]:
        return torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)

    compare_with_eager(make, OUTPUTS[outputs], SETTINGS[setting], codegen)


@few_settings
def test_outputs_that_share_memory_really_do(setting: str) -> None:
    """Aliasing that a caller can see survives: views of an input, and of one another."""
    fn = compiled(lambda x, w: (x.view(-1), (h := (x * w).sin()), h.view(-1)), SETTINGS[setting])
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    of_input, value, view = fn(x, w)
    assert of_input.data_ptr() == x.data_ptr()
    assert view.data_ptr() == value.data_ptr()


class LossAndLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(self.body(x))
        return nn.functional.cross_entropy(logits, labels), logits


@few_settings
@pytest.mark.parametrize("through", ["loss", "logits", "both"])
def test_the_loss_is_computed_outside(through: str, setting: str) -> None:
    """Only the model is compiled; either output, or both, may carry the gradient."""
    torch.manual_seed(0)
    fn, x, labels = LossAndLogits(), torch.randn(6, 8), torch.randint(4, (6,))
    call = compiled(fn, SETTINGS[setting])

    def loss_of(model: Any) -> Tensor:
        loss, logits = model(x, labels)
        outside = nn.functional.cross_entropy(logits, labels) + logits.square().mean()
        return {"loss": loss, "logits": outside, "both": loss + outside}[through]

    got = gradients(lambda: loss_of(call), (), fn)
    assert_same(got, gradients(lambda: loss_of(fn), (), fn))

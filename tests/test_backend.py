"""The backend as a user meets it: training loops, shapes, inference, precision."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from _training import BUDGETS, FLOOR, FULL, assert_same, compiled, gradients, small_mlp
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:gcpass. memory_budget")
no_fallback = pytest.mark.filterwarnings("error:gcpass cannot plan")

SETTINGS = {"0.6": BUDGETS["0.6"], "floor": FLOOR, "full": FULL}
every_setting = pytest.mark.parametrize("setting", SETTINGS)


def _loss_of(model: nn.Module) -> Any:
    return lambda x: model(x).square().mean()


def test_the_string_needs_no_import() -> None:
    """The entry point is found by name, with nothing of gcpass imported by the user."""
    program = (
        "import sys, torch\n"
        "m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))\n"
        "assert not any(n.split('.')[0] == 'gcpass' for n in sys.modules)\n"
        "f = torch.compile(m, backend='gcpass', options={'codegen': 'eager'})\n"
        "x = torch.randn(3, 4)\n"
        "f(x).sum().backward()\n"
        "got = m[0].weight.grad.clone(); m.zero_grad(); m(x).sum().backward()\n"
        "torch.testing.assert_close(got, m[0].weight.grad)\n"
        "assert 'gcpass.fx._backend' in sys.modules\n"
        "print('trained')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "trained"


@no_fallback
@every_setting
def test_training_with_an_optimizer(setting: str) -> None:
    """Thirty steps of AdamW end where eager's do."""
    ends = []
    for compile_it in (True, False):
        model = small_mlp()
        step = _loss_of(model)
        step = compiled(step, SETTINGS[setting]) if compile_it else step
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for seed in range(30):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
            loss = step(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        ends.append((torch.stack(losses), [p.detach() for p in model.parameters()]))
    assert_same(ends[0], ends[1], rtol=1e-3, atol=1e-4)
    assert ends[0][0][-1] < ends[0][0][0] / 2


@no_fallback
@every_setting
@pytest.mark.parametrize("how", ["marked", "dynamic", "recompiled"])
def test_dynamic_shapes(how: str, setting: str) -> None:
    """One plan serves other sizes too, or a second size is planned again."""
    model = small_mlp()

    def fn(x: Tensor) -> Tensor:
        h = model(x.reshape(-1, 16)) * x.shape[0]
        return (h.reshape(x.shape).softmax(1) + h.sum() / h.shape[0]).square().mean()

    call = compiled(fn, SETTINGS[setting], dynamic=True if how == "dynamic" else None)
    for batch in (4, 7, 12):
        x = torch.randn(batch, 5, 16)
        if how == "marked":
            torch._dynamo.mark_dynamic(x, 0)
        assert_same(gradients(call, (x,), model), gradients(fn, (x.clone(),), model))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == (2 if how == "recompiled" else 1)


@no_fallback
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference(context: Any) -> None:
    """No backward, no plan, the plain result; then training works too."""
    model, x = small_mlp(), torch.randn(4, 16)
    call = compiled(model, FLOOR)
    with context():
        torch.testing.assert_close(call(x), model(x))
    fn = _loss_of(model)
    assert_same(gradients(compiled(fn, FLOOR), (x,), model), gradients(fn, (x,), model))


@no_fallback
@every_setting
@pytest.mark.parametrize(
    "fn", [lambda x: x.sum(), lambda x: (x * 2 + 1).t().sum(), lambda x: x[1:].mean() - x.sum()]
)
def test_nothing_to_save(fn: Any, setting: str) -> None:
    x = torch.randn(4, 4, requires_grad=True)
    assert_same(gradients(compiled(fn, SETTINGS[setting]), (x,), [x]), gradients(fn, (x,), [x]))


@no_fallback
@every_setting
def test_frozen_parameters(setting: str) -> None:
    """As with LoRA: only two small matrices of a deep stack require a gradient."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.base, self.after = small_mlp(), nn.Linear(16, 16), small_mlp()
            self.requires_grad_(False)
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            h = self.before(x)
            return self.after(self.base(h) + self.up(self.down(h))).square().mean()

    model, x = Adapted(), torch.randn(4, 16)
    wrt = [model.down.weight, model.up.weight]
    got = gradients(compiled(model, SETTINGS[setting]), (x,), wrt)
    assert_same(got, gradients(model, (x,), wrt))
    assert all(p.grad is None for p in model.parameters())


@no_fallback
@every_setting
def test_bf16_autocast(setting: str) -> None:
    """The same region under autocast, casts of parameters and all."""
    model, x = small_mlp(), torch.randn(8, 16)

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    got = gradients(compiled(fn, SETTINGS[setting]), (x,), model)
    torch._dynamo.reset()
    expected = gradients(torch.compile(fn, backend="aot_eager"), (x,), model)
    assert_same(got, expected, rtol=2e-2, atol=2e-3)


@no_fallback
@every_setting
def test_backward_twice(setting: str) -> None:
    """retain_graph=True: the saved values survive the first backward."""
    model, x = small_mlp(), torch.randn(8, 16)
    fn = _loss_of(model)
    loss = compiled(fn, SETTINGS[setting])(x)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    twice = [p.grad / 2 for p in model.parameters()]
    model.zero_grad()
    expected = gradients(fn, (x,), model)
    assert_same((loss.detach(), once), expected)
    assert_same((loss.detach(), twice), expected)

"""What the backend is handed by others: their checkpointing, their ops, graphs it cannot plan."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _training import BUDGETS, FLOOR, FULL, assert_same, compiled, gradients, small_mlp
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import gcpass

pytestmark = pytest.mark.filterwarnings("ignore:gcpass. memory_budget")
no_fallback = pytest.mark.filterwarnings("error:gcpass cannot plan")

SETTINGS = {"0.6": BUDGETS["0.6"], "floor": FLOOR, "full": FULL}
every_setting = pytest.mark.parametrize("setting", SETTINGS)

# -- the user's own checkpointing --------------------------------------------------------------


class Checkpointed(nn.Module):
    """Blocks under `torch.utils.checkpoint`, then a linear layer whose gradient tells the mask."""

    def __init__(self, p: float, context_fn: Any = None) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(small_mlp() for _ in range(2)), nn.Linear(16, 16)
        self.p, self.extra = p, {"context_fn": context_fn} if context_fn else {}

    def block(self, x: Tensor, block: nn.Module) -> Tensor:
        return F.dropout(torch.tanh(block(x)), self.p) if self.p else torch.tanh(block(x))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(self.block, x, block, use_reentrant=False, **self.extra)
        return self.head(x).sum()


@no_fallback
@every_setting
def test_user_checkpointing(setting: str) -> None:
    model, x = Checkpointed(0.0), torch.randn(8, 16)
    assert_same(
        gradients(compiled(model, SETTINGS[setting]), (x,), model), gradients(model, (x,), model)
    )


@no_fallback
@pytest.mark.parametrize("setting", [*SETTINGS, "unbounded"])
def test_user_checkpointing_with_dropout(setting: str) -> None:
    """sum(x @ W + b) == <W, dW> + <b, db>, only if both passes draw one mask."""
    model, x = Checkpointed(0.3), torch.randn(8, 16)
    call = compiled(model, SETTINGS.get(setting, {}))
    losses = []
    for _ in range(2):
        loss, (*_, weight, bias) = gradients(call, (x,), model)
        implied = (model.head.weight * weight).sum() + (model.head.bias * bias).sum()
        torch.testing.assert_close(loss, implied.detach(), rtol=1e-4, atol=1e-3)
        losses.append(loss)
    assert losses[0] != losses[1]


@no_fallback
@every_setting
def test_selective_checkpointing_saves_what_the_user_says(setting: str) -> None:
    """MUST_SAVE on every matrix product: they are kept at any budget, and gradients are right."""

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.MUST_RECOMPUTE

    model = Checkpointed(0.0, lambda: create_selective_checkpoint_contexts(policy))
    x = torch.randn(8, 16)
    assert_same(
        gradients(compiled(model, SETTINGS[setting]), (x,), model), gradients(model, (x,), model)
    )
    torch._dynamo.reset()
    plan = gcpass.plan(model, (x,), codegen="eager", **SETTINGS[setting])
    assert sum("mm" in name for name in plan.kept) == 8


def test_noise_of_which_a_view_is_saved_is_noise_still() -> None:
    """A rule on a view goes to what holds its memory, but not in place of one that is stricter."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = op is torch.ops.aten.view.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def region(x: Tensor) -> Tensor:
        return (x.sin() * torch.rand(1024).view(32, 32).sqrt()).cos()

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    fn = lambda x: checkpoint(region, x, use_reentrant=False, context_fn=contexts).sum()
    x = torch.randn(32, 32, requires_grad=True)
    plan = gcpass.plan(fn, (x,), memory_budget=1, on_infeasible="best", codegen="eager")
    assert any("a random op" in row.why for row in plan.rows() if row.decision == "kept")


# -- ops and graphs of other kinds --------------------------------------------------------------


@torch.library.custom_op("gcpass_tests::cube", mutates_args=())
def _cube(x: Tensor) -> Tensor:
    return x * x * x


_cube.register_fake(torch.empty_like)
_cube.register_autograd(
    lambda ctx, grad: 3 * grad * ctx.saved_tensors[0].square(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@no_fallback
@every_setting
def test_custom_ops_are_never_free(setting: str) -> None:
    model, x = small_mlp(), torch.randn(8, 16)

    def fn(x: Tensor) -> Tensor:
        return _cube(torch.tanh(_cube(model(x)))).sin().sum()

    assert_same(gradients(compiled(fn, SETTINGS[setting]), (x,), model), gradients(fn, (x,), model))
    torch._dynamo.reset()
    plan = gcpass.plan(fn, (x,), codegen="eager", policy="none")
    rows = [r for r in plan.rows() if "cube" in r.target]
    tanh = next(r for r in plan.rows() if r.target == "aten.tanh")
    assert rows and all(r.seconds > tanh.seconds > 0 for r in rows)


@every_setting
def test_graph_breaks(setting: str) -> None:
    first, second, x = small_mlp(), small_mlp(), torch.randn(8, 16)

    def fn(x: Tensor) -> Tensor:
        h = first(x).tanh()
        torch._dynamo.graph_break()
        return second(h).square().mean()

    both = nn.ModuleList([first, second])
    assert_same(gradients(compiled(fn, SETTINGS[setting]), (x,), both), gradients(fn, (x,), both))

"""What the correctness tests share: a step compiled at a budget, and the floor as a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo.utils
from torch import Tensor, nn

FLOOR: dict[str, Any] = {"memory_budget": 1, "on_infeasible": "best"}
BUDGETS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "0.8": {"memory_budget": 0.8, "on_infeasible": "best"},
    "0.6": {"memory_budget": 0.6, "on_infeasible": "best"},
    "0.45": {"memory_budget": 0.45, "on_infeasible": "best"},
    "floor": FLOOR,
}
FULL: dict[str, Any] = {"policy": "full"}


def compiled(
    fn: Any, options: dict[str, Any], codegen: str = "eager", **compile_options: Any
) -> Any:
    """``fn`` compiled by gcpass, with nothing left of earlier compilations; strictly, as a rule."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"codegen": codegen, "strict": True, **options}
    return torch.compile(fn, backend="gcpass", options=options, **compile_options)


def gradients(
    fn: Callable[..., Tensor], args: Sequence[Any], wrt: nn.Module | Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The loss of ``fn(*args)`` and its gradients, which are left cleared."""
    leaves = list(wrt.parameters()) if isinstance(wrt, nn.Module) else list(wrt)
    for leaf in leaves:
        leaf.grad = None
    loss = fn(*args)
    loss.backward()
    found = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    assert all(g is not None for g in found)
    return loss.detach(), found


def assert_same(
    got: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]], **tolerance: float
) -> None:
    """Losses agree, and so does every gradient."""
    tolerance = tolerance or {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got[0], expected[0], **tolerance)
    for position, (a, b) in enumerate(zip(got[1], expected[1], strict=True)):
        torch.testing.assert_close(
            a, b, msg=lambda text, p=position: f"gradient {p}: {text}", **tolerance
        )


def small_mlp(width: int = 16, depth: int = 3) -> nn.Sequential:
    """The same weights at every call."""
    torch.manual_seed(0)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.LayerNorm(width))]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(width, width))


def compare_with_eager(make: Any, fn: Any, options: dict[str, Any], codegen: str = "eager") -> None:
    """Results, gradients and what became of the inputs are eager's, twice in a row."""

    def run(call: Any) -> list[Any]:
        torch.manual_seed(0)
        inputs = make()
        seen: list[Any] = []
        for _ in range(2):
            leaves = [t for t in inputs if t.requires_grad]
            results = call(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            needing = [r for r in results if r.requires_grad]
            torch.stack([(r * r).sum() for r in needing]).sum().backward()
            seen.append([r.detach().clone() for r in results])
            seen.append([leaf.grad.clone() for leaf in leaves])
            seen.append([t.detach().clone() for t in inputs])
        return seen

    got, expected = run(compiled(fn, options, codegen)), run(fn)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

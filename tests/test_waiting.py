"""Nothing in Inductor's code waits for what comes far later in the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gcpass import Plan
from gcpass._explain import Row
from gcpass.fx import _compat_inductor, _count, _lower
from gcpass.fx._backend import compile_graph
from gcpass.fx._options import read_options
from gcpass.policies import PolicyLike

LAYERS, TOKENS, WIDTH, WORDS, HEADS = 20, 64, 16, 128, 3


class Planned(BaseException):
    """Ends a compilation when there is a plan: nothing need be compiled."""


def written(
    fn: Callable[..., Tensor], args: tuple[Tensor, ...], policy: PolicyLike, monkeypatch: Any
) -> tuple[Plan, str]:
    """The plan of a function under a policy, and the code that Inductor writes for its backward."""
    plans: list[Plan] = []
    sources: list[str] = []

    def stop(plan: Plan) -> None:
        plans.append(plan)
        raise Planned

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_graph(gm, inputs, read_options({"policy": policy, "strict": True}), stop)

    def run(code: Any, *given: Any, **named: Any) -> Any:
        sources.append(code.source)
        return followed(code, *given, **named)

    followed = _count.run
    monkeypatch.setattr(_count, "run", run)
    torch._dynamo.reset()
    with pytest.raises(Planned):
        torch.compile(fn, backend=backend, dynamic=False)(*args)
    monkeypatch.setattr(_count, "run", followed)
    return plans[0], sources[-1]


def tied(words: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """A language model whose embedding is its head."""
    hidden = F.embedding(words, table)
    for layer in range(LAYERS):
        hidden = torch.tanh(hidden @ weights[layer])
    return F.cross_entropy(hidden @ table.t(), words)


def test_the_gradient_of_a_tied_head_is_made_where_it_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = torch.randint(WORDS, (TOKENS,))
    table = torch.randn(WORDS, WIDTH, requires_grad=True)
    weights = torch.randn(LAYERS, WIDTH, WIDTH, requires_grad=True)
    _, source = written(tied, (words, table, weights), "none", monkeypatch)
    assert "extern_kernels.addmm" not in source
    monkeypatch.setattr(_lower, "keep_sums_apart", lambda module: None)
    _, source = written(tied, (words, table, weights), "none", monkeypatch)
    assert "extern_kernels.addmm" in source


def crossed(memory: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """A decoder, each layer of which reads what a norm made of the encoder's output.

    The backward reads the norm again for the keys' gradients alone.
    """
    seen = memory * torch.rsqrt(memory.square().mean(-1, keepdim=True) + 1e-6)
    hidden = torch.zeros_like(memory)
    for layer in range(LAYERS):
        read = (seen @ keys[layer]).view(TOKENS, HEADS, WIDTH).sum(1)
        hidden = torch.tanh(hidden @ weights[layer] + read)
    return hidden.sum()


def between_layers(row: Row) -> str:
    return "save" if "tanh" in row.target else "recompute"


def test_what_many_layers_read_is_recomputed_for_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = torch.randn(TOKENS, WIDTH, requires_grad=True)
    weights = torch.randn(LAYERS, WIDTH, WIDTH, requires_grad=True)
    keys = torch.randn(LAYERS, WIDTH, HEADS * WIDTH, requires_grad=True)
    args = (memory, weights, keys)
    patient, _ = written(crossed, args, between_layers, monkeypatch)
    monkeypatch.setattr(_compat_inductor, "makes_others_wait", lambda value, reader: False)
    hasty, _ = written(crossed, args, between_layers, monkeypatch)
    assert patient.recompute_seconds == hasty.recompute_seconds > 0
    assert patient.predicted_peak_bytes < 0.9 * hasty.predicted_peak_bytes

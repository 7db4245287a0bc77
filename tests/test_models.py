"""The model zoo: every model is seeded, traces whole, and builds at paper size under fake mode."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from benchmarks.models import NAMES, build


def _gradients(fn: torch.nn.Module) -> list[torch.Tensor]:
    assert all(p.grad is not None for p in fn.parameters())
    return [p.grad for p in fn.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_builds_are_reproducible(name: str) -> None:
    losses = []
    for _ in range(2):
        torch.rand(3)  # the state of the global generator before does not matter
        fn, args = build(name, "tiny")
        assert isinstance(fn, torch.nn.Module) and fn.training
        loss = fn(*args)
        assert loss.shape == () and loss.isfinite()
        losses.append(loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_traces_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    fn, args = build(name, "tiny")
    expected = fn(*args)
    expected.backward()
    expected_gradients = _gradients(fn)

    fn, args = build(name, "tiny")
    loss = torch.compile(fn, backend="aot_eager", fullgraph=True)(*args)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(_gradients(fn), expected_gradients)


@pytest.mark.parametrize("name", NAMES)
def test_paper_size_under_fake_mode(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        fn, args = build(name, "paper")
        loss = fn(*args)
    dtype = torch.float32 if name == "resnet" else torch.bfloat16
    assert {p.dtype for p in fn.parameters()} == {dtype}
    assert loss.shape == () and loss.requires_grad
    assert torch.get_default_dtype() == torch.float32


def test_options_replace_the_sizes_values() -> None:
    fn, _ = build("llama", "tiny", gqa=True, layers=3)
    assert fn.model.config.num_key_value_heads == 1
    assert len(fn.model.model.layers) == 3
    fn, _ = build("llama", "tiny", layers=None)
    assert len(fn.model.model.layers) == 2
    with FakeTensorMode(allow_non_fake_inputs=True):
        fn, _ = build("llama", "paper", layers=80)
    assert len(fn.model.model.layers) == 80
    with pytest.raises(TypeError, match="mlp has no option 'gqa'"):
        build("mlp", "tiny", gqa=True)


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'bert'.*mlp.*narrow"):
        build("bert", "tiny")
    with pytest.raises(ValueError, match=r"unknown size 'huge'.*tiny, cpu, paper"):
        build("mlp", "huge")

"""Capturing the joint forward/backward graph of a callable without running it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from gcpass._errors import CaptureError
from gcpass.fx import _compat, _compat_inductor


@dataclass(frozen=True)
class Captured:
    """A joint graph as a partitioner is given it.

    Attributes:
        joint: the graph.
        num_fwd_outputs: how many of its outputs are the forward's.
        inputs: the (fake) inputs of the graph Dynamo captured.
    """

    joint: fx.GraphModule
    num_fwd_outputs: int
    inputs: Sequence[Any]


class _Stop(BaseException):
    """Carries the graph out of the compiler; not an error, so nothing on the way wraps it."""

    def __init__(self, captured: Captured) -> None:
        super().__init__()
        self.captured = captured


@contextlib.contextmanager
def fake_mode() -> Iterator[_compat.FakeTensorMode]:
    """Context in which modules and inputs of any size are built without memory.

    Returns:
        A context manager; what is built inside it can be handed to `gcpass.plan`.
    """
    with (
        _compat.converting_by_replacement(),
        _compat.FakeTensorMode(allow_non_fake_inputs=True) as mode,
    ):
        yield mode


def capture(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    codegen: str,
) -> Captured:
    """The joint graph of ``fn(*args, **kwargs)``, as the backend would be given it.

    Args:
        fn: returns a loss, or tensors, which are summed.
        args: real tensors, or fake ones built under `fake_mode`; nothing is computed with either.
        kwargs: likewise.
        codegen: ``"inductor"`` (its decompositions and joint-graph passes) or ``"eager"``.

    Returns:
        The graph.

    Raises:
        CaptureError: ``fn`` breaks the graph, or nothing in its result needs a gradient.
    """

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def grab(joint: fx.GraphModule, _inputs: Any, **keywords: Any) -> Any:
            raise _Stop(Captured(joint, keywords["num_fwd_outputs"], inputs))

        if codegen == "eager":
            return _compat.compile_eagerly(gm, inputs, grab, _compat.eager_decompositions())
        return _compat_inductor.compile_with_inductor(
            gm,
            inputs,
            {"custom_partitioner_fn": _Grabber(grab), "force_disable_caches": True},
        )

    def loss() -> Any:
        return loss_of(fn(*args, **(kwargs or {})))

    mode = (
        _compat.detect_fake_mode([*args, *(kwargs or {}).values(), *_parameters_of(fn)])
        or contextlib.nullcontext()
    )
    compiled = torch.compile(loss, backend=backend, fullgraph=True, dynamic=False)
    try:
        with mode, torch.enable_grad():
            compiled()
    except _Stop as stop:
        return stop.captured
    except _compat.Unsupported as error:
        raise CaptureError(
            f"{_name(fn)} breaks the graph, so it has no single joint graph to plan: {error}"
        ) from error
    raise no_gradient(fn)


class _Grabber(_compat.CustomPartitionerFn):
    def __init__(self, grab: Callable[..., Any]) -> None:
        self._grab = grab

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> Any:
        return self._grab(gm, joint_inputs, **kwargs)

    def uuid(self) -> None:
        return None


def loss_of(result: Any) -> torch.Tensor | None:
    """The loss meant by a function's result: it, or the sum of its tensors; None without any.

    Tensors that need no gradient do not count.
    """
    leaves = [t for t in _compat.tree_leaves(result) if isinstance(t, torch.Tensor)]
    tensors = [t for t in leaves if t.requires_grad]
    if len(tensors) == 1 and tensors[0].dim() == 0:
        return tensors[0]
    return torch.stack([t.sum() for t in tensors]).sum() if tensors else None


def no_gradient(fn: Callable[..., Any]) -> CaptureError:
    """The error for a function without a `loss_of`."""
    return CaptureError(
        f"nothing in the result of {_name(fn)} needs a gradient: return a loss computed from "
        "parameters that require one"
    )


def _parameters_of(fn: Callable[..., Any]) -> Sequence[torch.Tensor]:
    owner = getattr(fn, "__self__", fn)
    return list(owner.parameters())[:1] if isinstance(owner, torch.nn.Module) else []


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)

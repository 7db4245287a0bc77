"""The private parts of Inductor: compiling with it, and reading the code that it writes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from gcpass.fx._compat import functorch_config, inductor_config
from gcpass.fx._fusions import makes_others_wait
from gcpass.fx._generated import Buffer, Generated


def compile_with_inductor(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    config_patches: dict[str, Any],
    *,
    relaxed: Callable[[], bool] = lambda: True,
) -> Callable[..., Any]:
    """What ``torch.compile(backend="inductor")`` makes of a graph.

    Args:
        gm: the graph.
        example_inputs: its inputs.
        config_patches: Inductor's options.
        relaxed: whether memory may be held longer than values need it (`_holding`), asked once the
            joint graph has been partitioned.
    """
    from torch._inductor.compile_fx import compile_fx

    def inner(module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        with _holding(relaxed=relaxed()):
            return _compile_inner(module, inputs, **kwargs)

    compiled: Any = compile_fx(
        gm, list(example_inputs), inner_compile=inner, config_patches=config_patches
    )
    return compiled


@contextlib.contextmanager
def _holding(*, relaxed: bool) -> Iterator[None]:
    """Where ``relaxed``, Inductor's options decide how long memory is held.

    Else no block is held for a later value of its size; and on a CPU every loop is a kernel: those
    that follow one another would be one, which lets go of nothing before the last of them has run.
    """
    if relaxed:
        yield
        return
    from unittest import mock

    from torch._inductor.codegen.cpp import CppScheduling

    with (
        inductor_config.patch(allow_buffer_reuse=False),
        mock.patch.object(CppScheduling, "MAX_FUSED_KERNEL_ARGS_NUM", 0, create=True),
    ):
        yield


def _compile_inner(module: fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Inductor's own, but a backward without the fusions that keep other readers waiting."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.virtualized import V

    if not kwargs.get("is_backward"):
        return compile_fx_inner(module, inputs, **kwargs)
    with V.set_choices_handler(_patient(type(V.choices))()):
        return compile_fx_inner(module, inputs, **kwargs)


@functools.cache
def _patient(choices: type[Any]) -> type[Any]:
    class Patient(choices):
        def can_fuse_vertical(self, scheduler: Any, value: Any, reader: Any, score: int) -> bool:
            if makes_others_wait(value, reader):
                return False
            return super().can_fuse_vertical(scheduler, value, reader, score)

    return Patient


def inductor_options(mode: str | None = None) -> dict[str, Any]:
    """Inductor's options and their values; with ``mode``, only those that the mode sets."""
    if mode is None:
        return inductor_config.get_config_copy()
    from torch._inductor import list_mode_options

    return list_mode_options(mode)


class _Written(BaseException):
    """Carries generated code out of Inductor; not an error, so nothing wraps it."""

    def __init__(self, code: Generated) -> None:
        super().__init__()
        self.code = code


def donated(
    inputs: list[Any], visible_outputs: list[Any], gradients: list[Any], saved: list[Any]
) -> list[int]:
    """Which saved values' memory the backward may write over, by torch's own rule.

    It is shown tensors alone: that of torch 2.11 takes every saved value, sizes too, for one.
    """
    from torch._functorch._aot_autograd.graph_compile import collect_fw_donated_buffer_idxs

    if not functorch_config.donated_buffer:
        return []
    places = [place for place, value in enumerate(saved) if isinstance(value, torch.Tensor)]
    tensors = [saved[place] for place in places]
    found = collect_fw_donated_buffer_idxs(inputs, visible_outputs, gradients, tensors)
    return [places[index] for index in found]


def generated_code(
    module: fx.GraphModule, inputs: list[Any], donated: list[int] | None, *, relaxed: bool = True
) -> Generated | None:
    """The code that Inductor generates for a graph, of which nothing is compiled.

    C++ loops are written without vectors, which is faster and changes no buffer.

    Args:
        module: a forward or backward graph, inside the compilation that it belongs to; consumed.
        inputs: its fake inputs.
        donated: places of the inputs that a backward may write over; None for a forward.
        relaxed: whether memory may be held longer than values need it.

    Returns:
        The code; None if there is none, for a graph without an operation.
    """
    from unittest import mock

    from torch._inductor import graph

    write = graph.GraphLowering.codegen

    def stop(self: Any) -> Any:
        if isinstance(self, graph.SubgraphLowering):  # the body of a higher-order op
            return write(self)
        wrapper, _ = write(self)
        raise _Written(
            Generated(
                source=wrapper.value,
                buffers={name: _buffer(self, b) for name, b in self.name_to_buffer.items()},
                strides=tuple(_strides(self, output) for output in self.graph_outputs),
                converts_layouts=bool(self.layout_opt),
            )
        )

    changed: dict[str, Any] = {
        "force_disable_caches": True,
        "cpp_wrapper": False,
        "graph_partition": False,
    }
    if not (inductor_config.max_autotune or inductor_config.max_autotune_gemm):
        changed["cpp.simdlen"] = 1
    with (
        mock.patch.object(graph, "get_donated_idxs", return_value=donated),
        mock.patch.object(graph.GraphLowering, "codegen", stop),
        inductor_config.patch(changed),
        _holding(relaxed=relaxed),
    ):
        try:
            _compile_inner(module, inputs, is_backward=donated is not None)
        except _Written as written:
            return written.code
    return None


def _buffer(graph: Any, buffer: Any) -> Buffer:
    """What Inductor knows of one of its buffers; those of no tensor have no bytes."""
    origins = getattr(buffer, "get_origins", tuple)  # what a collective writes in place has none
    nodes = tuple(node.name for node in origins())
    aliases = tuple(buffer.get_inputs_that_alias_output())
    dtype = buffer.maybe_get_dtype()
    if dtype is None or buffer.maybe_get_layout() is None:
        return Buffer(0, aliases, nodes)
    elements = _inductor_hint(graph, graph.get_allocation_storage_size(buffer))
    return Buffer(elements * dtype.itemsize, aliases, nodes, dtype.itemsize)


def _strides(graph: Any, output: Any) -> tuple[int, ...] | None:
    """Strides of an output of Inductor's graph; a number or a constant has none."""
    layout = output.maybe_get_layout() if output.has_tensor_output() else None
    return None if layout is None else tuple(_inductor_hint(graph, s) for s in layout.stride)


def _inductor_hint(graph: Any, size: Any) -> int:
    """The number that a size of Inductor's stood for while tracing; 0 for a data-dependent one."""
    sizes = graph.sizevars
    return int((getattr(sizes, "optimization_hint", None) or sizes.size_hint)(size, fallback=0))

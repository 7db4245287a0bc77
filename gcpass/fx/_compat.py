"""With `_compat_inductor`, the one place that names private parts of torch (tested with 2.13).

Everything here is a thin door: no decision of gcpass is made in this file. Where a release lacks
a name, the error says which and what to install.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx

from gcpass._errors import GcpassError

MINIMUM_TORCH = (2, 11)


def check_torch_version(version: str = torch.__version__) -> None:
    """Raise `GcpassError` if torch is too old for the hooks gcpass uses."""
    parts = version.split("+")[0].split(".")
    if tuple(int(p) for p in parts[:2]) < MINIMUM_TORCH:
        wanted = ".".join(map(str, MINIMUM_TORCH))
        raise GcpassError(
            f"torch {version} is installed and gcpass needs torch >= {wanted}: "
            f"pip install 'torch>={wanted}'"
        )


check_torch_version()

from torch._decomp import decomposition_table  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.eval_frame import OptimizedModule, reset_code  # noqa: E402
from torch._dynamo.exc import ShortenTraceback, Unsupported  # noqa: E402
from torch._functorch import config as functorch_config  # noqa: E402
from torch._functorch import partitioners as _partitioners  # noqa: E402
from torch._functorch.compile_utils import fx_graph_cse, raise_getitems  # noqa: E402
from torch._guards import TracingContext, detect_fake_mode, tracing  # noqa: E402
from torch._higher_order_ops.effects import with_effects  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.custom_graph_pass import CustomPartitionerFn  # noqa: E402
from torch._logging import trace_structured  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy  # noqa: E402
from torch.utils.flop_counter import flop_registry  # noqa: E402


def hint(size: int | torch.SymInt, unknown: int = 4096) -> int:
    """The number a symbolic size stood for while tracing; ``unknown`` for a data-dependent one."""
    if isinstance(size, int):
        return size
    value = size.node.hint
    return unknown if value is None else int(value)


def reach_the_user(error: GcpassError) -> GcpassError:
    """``error`` in a form that Dynamo hands on as it is, instead of wrapping it."""
    kind = type(error)
    passed_on = type(kind.__name__, (kind, ShortenTraceback), {"__module__": kind.__module__})
    new = passed_on.__new__(passed_on, *error.args)
    new.args = error.args
    new.__dict__.update(error.__dict__, first_useful_frame=None)
    return new


@contextlib.contextmanager
def without_dynamo_warnings() -> Iterator[None]:
    """Nothing that Dynamo warns of is shown."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch._dynamo")
        yield


def met_by_dynamo(error: BaseException) -> BaseException:
    """What Dynamo met, if the error is one of those in which it wraps that, in many lines."""
    if type(error).__module__.startswith("torch._dynamo"):
        while met := error.__cause__ or error.__context__:
            error = met
    return error


def compile_eagerly(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    partition_fn: Callable[..., Any],
    decompositions: dict[Any, Any],
) -> Callable[..., Any]:
    """AOTAutograd with ``partition_fn`` and no code generation."""
    from torch._dynamo.backends.debugging import boxed_nop

    return aot_autograd(
        fw_compiler=boxed_nop,
        bw_compiler=boxed_nop,
        partition_fn=partition_fn,
        decompositions=decompositions,
        keep_inference_input_mutations=True,
    )(gm, list(example_inputs))


def eager_decompositions() -> dict[Any, Any]:
    """What ``codegen="eager"`` decomposes: dropout, so that only its mask need be kept."""
    return {
        torch.ops.aten.native_dropout.default: decomposition_table[
            torch.ops.aten.native_dropout.default
        ]
    }


def is_default_recomputable(target: object) -> bool:
    """Whether torch's own partitioner lists the op as cheap to recompute."""
    global _recomputable
    if _recomputable is None:
        _recomputable = set(_partitioners.get_default_op_list().recomputable_ops)
    packet = getattr(target, "_overloadpacket", target)
    return packet in _recomputable


_recomputable: set[Any] | None = None


def clean_graph(joint: fx.GraphModule) -> fx.GraphModule:
    """Remove dead code and common subexpressions, as torch's own partitioner does first."""
    joint.graph.eliminate_dead_code()
    if functorch_config.cse:  # off only for those who debug AOTAutograd
        joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()
    return joint


def clean_user_tags(joint: fx.GraphModule) -> fx.GraphModule:
    """Keep what stands between two checkpointed regions, and honour backward hooks."""
    if _partitioners.has_recomputable_ops(joint):
        return _partitioners.cleanup_recompute_tags(joint, is_default_partition=False)
    return joint


def functionalize_replayed_rng(
    joint: fx.GraphModule, forward: fx.GraphModule, backward: fx.GraphModule, n_symbols: int
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Replay the random stream of random ops that the user's checkpointing recomputes."""
    if _partitioners.has_recomputable_rng_ops(joint):
        return _partitioners.functionalize_rng_ops(joint, forward, backward, n_symbols)
    return forward, backward


def must_be_in_forward(node: fx.Node) -> bool:
    return _partitioners._must_be_in_forward(node)


def must_be_in_backward(node: fx.Node) -> bool:
    return _partitioners._must_be_in_backward(node)


def is_symbol(node: fx.Node) -> bool:
    return _partitioners.is_sym_node(node)


def is_opaque(node: fx.Node) -> bool:
    """Whether the node's value is an object that torch passes on unseen: a device mesh, a group."""
    known = getattr(_partitioners, "is_opaque_node", None)
    return known is not None and known(node)


def extract_modules(
    joint: fx.GraphModule,
    saved_values: list[fx.Node],
    saved_symbols: list[fx.Node],
    saved_objects: list[fx.Node],
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split the joint graph into forward and backward around the saved values."""
    arguments: dict[str, Any] = {"num_fwd_outputs": num_fwd_outputs}
    known = inspect.signature(_partitioners._extract_fwd_bwd_modules).parameters
    if "static_lifetime_input_nodes" in known:
        primals = [
            n for n in joint.graph.find_nodes(op="placeholder") if _partitioners._is_primal(n)
        ]
        static = set(static_lifetime_input_indices or ())
        arguments["static_lifetime_input_nodes"] = _ordered(
            p for i, p in enumerate(primals) if i in static
        )
    if "saved_opaque_nodes" in known:
        arguments["saved_opaque_nodes"] = saved_objects
    return _partitioners._extract_fwd_bwd_modules(
        joint, saved_values, saved_sym_nodes=saved_symbols, **arguments
    )


def _ordered(nodes: Any) -> Any:
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet(nodes)


def finish_modules(
    forward: fx.GraphModule, backward: fx.GraphModule
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The last steps of torch's own partitioner: early getitems, random states of inner ops."""
    forward, backward = raise_getitems(forward), raise_getitems(backward)
    thread = getattr(_partitioners, "thread_graphsafe_rng_from_hops", None)
    if thread is not None:
        forward = thread(forward, is_backward=False)
        backward = thread(backward, is_backward=True)
    return forward, backward


@contextlib.contextmanager
def stock_memory_budget(fraction: float) -> Iterator[None]:
    with functorch_config.patch(activation_memory_budget=fraction):
        yield


def stock_partition(
    joint: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """torch's own min-cut partitioner; outside a compilation, with the graph's own fake mode."""
    from functorch.compile import min_cut_rematerialization_partition

    outside = TracingContext.try_get() is None
    mode = detect_fake_mode([n.meta.get("val") for n in joint.graph.nodes]) if outside else None
    with tracing(TracingContext(mode)) if mode is not None else contextlib.nullcontext():
        return min_cut_rematerialization_partition(joint, joint_inputs, **kwargs)


__all__ = [
    "CheckpointPolicy",
    "CustomPartitionerFn",
    "FakeTensorMode",
    "HigherOrderOperator",
    "Unsupported",
    "detect_fake_mode",
    "flop_registry",
    "hint",
    "inductor_config",
    "tree_leaves",
    "tree_map",
    "with_effects",
]


HigherOrderOperator = torch._ops.HigherOrderOperator


@contextlib.contextmanager
def without_compiled_graph_cache() -> Iterator[None]:
    """AOTAutograd's cache off, so that the partitioner runs; Inductor's kernel cache stays on."""
    with functorch_config.patch(enable_autograd_cache=False):
        yield


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """No tracing and no fake tensors: what is called inside is really run."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C._DisableAutocast():
        yield


@contextlib.contextmanager
def converting_by_replacement() -> Iterator[None]:
    """Let ``module.to(...)`` put new parameters into modules, tied ones once.

    nn.Module's own conversion swaps tensors in place, which fake ones refuse: their mode refers to
    them.
    """
    replaced: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}

    def apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
        if recurse:
            for child in self.children():
                apply(child, fn)
        for key, parameter in self._parameters.items():
            if parameter is not None:
                if id(parameter) not in replaced:
                    with torch.no_grad():
                        new = torch.nn.Parameter(fn(parameter), parameter.requires_grad)
                    replaced[id(parameter)] = (parameter, new)
                self._parameters[key] = replaced[id(parameter)][1]
        for key, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[key] = fn(buffer)
        return self

    original = torch.nn.Module._apply
    torch.nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]


def trace_artifact(name: str, encoding: str, payload: Callable[[], str]) -> None:
    """Put a text into torch's structured trace; it is made only if one is written."""
    trace_structured("artifact", lambda: {"name": name, "encoding": encoding}, payload_fn=payload)


def current_code() -> CodeType | None:
    """The code of the function that Dynamo is compiling; None outside Dynamo."""
    context = TracingContext.try_get()
    return context.traced_code[0] if context is not None and context.traced_code else None


def is_whole_model(gm: fx.GraphModule) -> bool:
    """Whether nothing says that a graph is part of a model: no graph break, no module around it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    code = current_code()
    resumes = code is not None and code.co_name.startswith("torch_dynamo_resume_in_")
    return not (resumes or (reason is not None and reason.graph_break) or _is_inside_a_module())


def _is_inside_a_module() -> bool:
    """Whether a module is being called by another one's forward."""
    called: set[int] = set()
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            module = frame.f_locals["self"]
            if not isinstance(module, OptimizedModule):  # what `torch.compile` puts around it
                called.add(id(module))
        frame = frame.f_back
    return len(called) > 1


def forget(code: CodeType) -> None:
    """Let Dynamo compile a function again when it is next called."""
    reset_code(code)


def saves_elsewhere() -> bool:
    """Whether saved-tensor hooks are on: what is saved is recomputed later, or moved elsewhere."""
    autograd: Any = torch._C
    return autograd._autograd._top_saved_tensors_default_hooks(False) is not None


def when_autograd_is_done(call: Callable[[], None]) -> None:
    """Have something called at the end of the backward that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def gradient_nbytes(node: Any, place: int) -> int:
    """Bytes of a gradient that an autograd node takes."""
    if hasattr(node, "variable"):
        return node.variable.nbytes
    meta = node._input_metadata[place]
    return math.prod(meta.shape) * meta.dtype.itemsize

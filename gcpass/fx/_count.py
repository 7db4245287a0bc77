"""What the code that Inductor writes for a plan's two graphs holds.

Nothing is compiled; what is alive is read from the code (`gcpass.fx._generated`). A part of the
budget is left free for what library calls allocate that no code names: measured on the CPU (0.2% at
most, nothing in matrix products in fp32), a margin chosen and not derived elsewhere.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from gcpass._evaluate import Use
from gcpass._planning import Planned
from gcpass._problem import Kernel
from gcpass.fx import _compat_inductor, _meta
from gcpass.fx._analyze import Analysis
from gcpass.fx._call import block_nbytes, call_of, packet_name
from gcpass.fx._correction import Moments
from gcpass.fx._devices import device_of
from gcpass.fx._generated import NOTHING, Generated, Storage, run
from gcpass.fx._graphs import copy_graph
from gcpass.fx._kernels import kernel
from gcpass.fx._views import base_of
from gcpass.fx._workspaces import workspace_nbytes

_UNCOUNTED, _UNCOUNTED_ELSEWHERE = 0.004, 0.02  # of the count: on the CPU, on other devices
_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")


def uncounted(analysis: Analysis) -> float:
    """What a graph may hold beyond a count, as a part of that."""
    if device_of(map(_meta.value, analysis.nodes)).type != "cpu":
        return _UNCOUNTED_ELSEWHERE
    return 0.0 if all(map(_allocates_nothing, analysis.nodes)) else _UNCOUNTED


def _allocates_nothing(node: fx.Node) -> bool:
    """Whether the node runs in generated code, or in a library call that has no scratch memory."""
    if node.op != "call_function" or node.target is operator.getitem:
        return True
    if kernel(node) is not Kernel.EXTERN or base_of(node) is not None:
        return True
    value = _meta.value(node)
    is_fp32 = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return is_fp32 and packet_name(node) in _PRODUCTS


def counted_use(
    analysis: Analysis,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
) -> Use:
    """The bytes alive while the code of both graphs runs, one after the other.

    What the forward returns is alive until the backward has read it; outputs that the user sees,
    and the tangents that come in for them, are alive until the end.
    """
    return count(analysis, planned, modules, relaxed=True)[0]


def count(
    analysis: Analysis,
    planned: Planned,
    modules: tuple[fx.GraphModule, fx.GraphModule],
    *,
    relaxed: bool,
) -> tuple[Use, Moments]:
    """The same, with the moments of the backward.

    Args:
        analysis: of the graph.
        planned: its plan.
        modules: the plan's graphs.
        relaxed: whether Inductor may hold memory longer than values need it.
    """
    forward, backward = modules
    visible = analysis.num_fwd_outputs
    outputs, inputs = _outputs(forward), backward.graph.find_nodes(op="placeholder")
    saved = {output.name: i for i, output in enumerate(outputs) if isinstance(output, fx.Node)}
    given = _values(forward.graph.find_nodes(op="placeholder"))
    ahead = _written(forward, given, visible, relaxed=relaxed)
    if ahead is None:
        return planned.evaluation.use, ()
    restrided = [
        _restride(_meta.value(node), ahead.strides[saved[node.name]])
        if node.name in saved
        else _meta.value(node)
        for node in inputs
    ]
    overwritten = _overwritten(forward, backward, visible)
    back = _written(backward, restrided, overwritten=overwritten, relaxed=relaxed)
    if back is None:
        return planned.evaluation.use, ()
    nothing = [NOTHING for _ in forward.graph.find_nodes(op="placeholder")]
    converted = ahead.converts_layouts
    first = run(ahead, nothing, workspaces=_workspaces(forward, channels_last=converted))
    arguments, held = [], NOTHING.union(*first.outputs[:visible])
    for node in inputs:
        if node.name in saved:
            arguments.append(first.outputs[saved[node.name]])
        else:  # a tangent
            arguments.append(frozenset({Storage(_nbytes(node))}))
            held |= arguments[-1]
    converted |= back.converts_layouts  # or else it is handed what the forward converted
    workspaces = _workspaces(backward, channels_last=converted)
    second = run(back, arguments, held=held, workspaces=workspaces)
    between = sum(storage.nbytes for storage in NOTHING.union(*first.outputs))
    return Use(first.peak_nbytes, between, second.peak_nbytes), second.moments


def _written(
    module: fx.GraphModule,
    inputs: list[Any],
    visible: int = 0,
    overwritten: list[int] | None = None,
    *,
    relaxed: bool,
) -> Generated | None:
    """The code for one graph, a copy of which is consumed; a forward if nothing is overwritten."""
    module = copy_graph(module)
    (output,) = module.graph.find_nodes(op="output")
    _meta.show_outputs(output, visible)
    return _compat_inductor.generated_code(module, inputs, overwritten, relaxed=relaxed)


def _restride(value: Any, strides: tuple[int, ...] | None) -> Any:
    """A saved value in the layout that the forward's code gave it, as AOTAutograd does it."""
    if strides is None or not isinstance(value, torch.Tensor) or value.stride() == strides:
        return value
    return value.as_strided(value.size(), strides)


def _overwritten(forward: fx.GraphModule, backward: fx.GraphModule, visible: int) -> list[int]:
    """Places of the backward's inputs that it may write over: nobody else refers to them."""
    inputs = forward.graph.find_nodes(op="placeholder")
    outputs = _outputs(forward)
    saved = {output.name for output in outputs[visible:] if isinstance(output, fx.Node)}
    places = {
        place: node
        for place, node in enumerate(backward.graph.find_nodes(op="placeholder"))
        if node.name in saved
    }
    found = _compat_inductor.donated(
        _values(inputs),
        _values(outputs[:visible]),
        _values(_outputs(backward)),
        _values(places.values()),
    )
    return [list(places)[i] for i in found]


def _values(nodes: Iterable[object]) -> list[Any]:
    return [_meta.value(node) if isinstance(node, fx.Node) else None for node in nodes]


def _outputs(module: fx.GraphModule) -> list[object]:
    (output,) = module.graph.find_nodes(op="output")
    (values,) = output.args
    assert isinstance(values, (list, tuple))
    return list(values)


def _nbytes(node: fx.Node) -> int:
    value = _meta.value(node)
    return block_nbytes(value)


def _workspaces(module: fx.GraphModule, *, channels_last: bool) -> dict[str, int]:
    """Bytes that each library call needs while it runs."""
    return {
        node.name: workspace_nbytes(call_of(node), channels_last)
        for node in module.graph.nodes
        if node.op == "call_function"
    }

"""From a joint graph to a `Problem`: ops, storages, costs and constraints."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
from torch import fx

from gcpass._errors import UnsupportedGraph
from gcpass._problem import Op, Phase, Problem, Storage
from gcpass._units import PICOSECONDS
from gcpass.fx import _compat, _meta
from gcpass.fx._call import block_nbytes, call_of, items_of, packet_name
from gcpass.fx._choices import drifting_choices
from gcpass.fx._constraints import Rules, keep_what_is_viewed
from gcpass.fx._costs import Prices
from gcpass.fx._devices import device_of
from gcpass.fx._kernels import kernel
from gcpass.fx._phases import classify, is_tangent, output_nodes, running_order
from gcpass.fx._region import regions_of
from gcpass.fx._traffic import loop_traffic
from gcpass.fx._views import base_of, clone_mutated_inputs, mutated_inputs
from gcpass.fx._workspaces import (
    dense_copies_nbytes,
    promoted_copies_nbytes,
    result_nbytes,
    workspace_nbytes,
)
from gcpass.policies import Region

_CUDA_BLOCK = 512  # bytes that CUDA's caching allocator rounds up to


@dataclass(frozen=True)
class Analysis:
    """A joint graph and the problem read off it.

    Attributes:
        joint: the graph, cleaned; mutated inputs that the backward reads are cloned first.
        problem: what the solvers see.
        nodes: the graph node of each op of the problem.
        num_fwd_outputs: how many of the joint graph's outputs the forward returns.
        regions: what was marked in the user's code.
        notes: what a user should know of the prices, in sentences.
        ruled_by: whose rules the problem has beside the graph's own.
    """

    joint: fx.GraphModule
    problem: Problem
    nodes: tuple[fx.Node, ...]
    num_fwd_outputs: int
    regions: tuple[Region, ...] = ()
    notes: tuple[str, ...] = ()
    ruled_by: tuple[str, ...] = ()

    def preferring(self) -> Analysis | None:
        """The same under the user's preferences; None if there are none."""
        problem = self.problem.preferring
        return None if problem is None else replace(self, problem=problem)

    def index_of(self) -> dict[str, int]:
        return {node.name: index for index, node in enumerate(self.nodes)}


def analyze(joint: fx.GraphModule, num_fwd_outputs: int, prices: Prices, codegen: str) -> Analysis:
    """Read the planning problem off a joint graph.

    Args:
        joint: as AOTAutograd hands it to a partitioner; cleaned in place.
        num_fwd_outputs: how many of its outputs are the forward's.
        prices: of the ops.
        codegen: ``"eager"`` or ``"inductor"``.

    Returns:
        The graph and the problem.

    Raises:
        UnsupportedGraph: the graph holds something the planner cannot reason about.
    """
    joint = _compat.clean_graph(joint)
    tags = {node: _meta.checkpoint_policy(node) for node in joint.graph.nodes}
    joint = _compat.clean_user_tags(joint)
    clone_mutated_inputs(joint)
    phases = classify(joint, num_fwd_outputs)
    order = running_order(joint, phases)
    rules = Rules(mutated_inputs(joint), drifting_choices(order, phases, codegen), tags)
    problem = _Builder(joint, order, phases, num_fwd_outputs, prices, codegen, rules).build()
    return Analysis(
        joint,
        problem,
        tuple(order),
        num_fwd_outputs,
        regions_of(order, problem.forward_range),
        (*prices.finish(), *rules.notes()),
    )


class _Builder:
    """Builds ops and storages, one node at a time, in running order."""

    def __init__(
        self,
        joint: fx.GraphModule,
        order: list[fx.Node],
        phases: dict[fx.Node, Phase],
        num_fwd_outputs: int,
        prices: Prices,
        codegen: str,
        rules: Rules,
    ) -> None:
        self.joint, self.order, self.phases = joint, order, phases
        self.outputs, self.gradients = output_nodes(joint, num_fwd_outputs)
        self.prices, self.codegen = prices, codegen
        fuses = codegen == "inductor" and prices.device
        self.traffic = loop_traffic(order) if fuses else {}
        self.workspaces_count = prices.device == "cpu" == device_of(map(_meta.value, order)).type
        self.index = {node: i for i, node in enumerate(order)}
        self.rules = rules
        self.storages: list[Storage] = []
        self.values: dict[fx.Node, tuple[int, ...]] = {}  # storages of each node's value

    def build(self) -> Problem:
        ops = [self._op(index, node) for index, node in enumerate(self.order)]
        index = self.index
        return Problem(
            ops=keep_what_is_viewed(ops, self.storages),
            storages=tuple(self.storages),
            outputs=tuple(dict.fromkeys(index[n] for n in self.outputs if n in index)),
            gradients=tuple(dict.fromkeys(index[n] for n in self.gradients if n in index)),
            codegen=self.codegen,
            hardware=self.prices.name,
        )

    def _op(self, index: int, node: fx.Node) -> Op:
        phase = self.phases[node]
        value = _meta.value(node)
        if not _compat.is_opaque(node):
            self._check_value(node, value)
        produces = self._place(index, node, value)
        cost = traffic = workspace = 0
        if node.op == "call_function" and produces and node.target is not operator.getitem:
            call = call_of(node)
            cost = round(PICOSECONDS * self.prices.seconds(call, self.traffic.get(node)))
            traffic = round(PICOSECONDS * self.prices.traffic_seconds(value))
            if self.workspaces_count:
                fused = self.codegen == "inductor"  # which lays convolutions out channels last
                workspace = workspace_nbytes(call, channels_last=fused) + dense_copies_nbytes(call)
                workspace += 0 if fused else promoted_copies_nbytes(call)
        module, source = _meta.origin(node)
        return Op(
            name=node.name,
            target="tangent" if is_tangent(node) else _target_name(node),
            phase=phase,
            inputs=tuple(dict.fromkeys(self.index[n] for n in node.all_input_nodes)),
            storages=self.values[node],
            picoseconds=cost,
            traffic_picoseconds=traffic,
            workspace_nbytes=workspace,
            kernel=kernel(node),
            constraint=self.rules.constraint(node, phase),
            preference=self.rules.preference(node, phase),
            module=module,
            source=source,
        )

    def _check_value(self, node: fx.Node, value: object) -> None:
        known = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
        items = items_of(value)
        for item in [value] if items is None else items:
            if item is not None and not isinstance(item, known):
                raise UnsupportedGraph(
                    f"{node.name} ({_target_name(node)}) has a value of type "
                    f"{type(item).__name__}, which is not a tensor or a number"
                )

    def _place(self, index: int, node: fx.Node, value: object) -> bool:
        """Give the node's value its storages; whether the node allocates any."""
        base = base_of(node)
        if base is not None:
            self.values[node] = self.values[base]
            if "wait_tensor" in str(node.target):  # the waited value is what can be kept
                for s in self.values[node]:
                    old = self.storages[s]
                    self.storages[s] = Storage(old.nbytes, old.producer, index)
            return False
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._place_item(index, node)
        items = items_of(value)
        if items is not None:  # one that is no tensor gets an empty storage
            self.values[node] = tuple(
                self._store(index, block_nbytes(item), None) for item in items
            )
            return any(isinstance(item, torch.Tensor) for item in items)
        no_tensor = _compat.is_symbol(node) or _compat.is_opaque(node)
        if isinstance(value, torch.Tensor) or no_tensor:
            size = (
                result_nbytes(node, value)
                if self.workspaces_count and self.codegen == "eager"
                else block_nbytes(value)
            )
            self.values[node] = (self._store(index, size, index),)
            return True
        self.values[node] = ()
        return False

    def _store(self, producer: int, nbytes: int, holder: int | None) -> int:
        """A new storage; on CUDA, of whole blocks of its allocator."""
        if self.prices.device == "cuda":
            nbytes = -(-nbytes // _CUDA_BLOCK) * _CUDA_BLOCK
        self.storages.append(Storage(nbytes, producer, holder))
        return len(self.storages) - 1

    def _place_item(self, index: int, node: fx.Node) -> bool:
        source, position = node.args[0], node.args[1]
        assert isinstance(source, fx.Node)
        places, value = self.values[source], _meta.value(source)
        if isinstance(value, dict) and position in value:
            position = list(value).index(position)
        if isinstance(position, int) and -len(places) <= position < len(places):
            s = places[position]
            self.values[node] = (s,)
            if isinstance(_meta.value(node), torch.Tensor):
                old = self.storages[s]
                if old.holder is None:
                    self.storages[s] = Storage(old.nbytes, old.producer, index)
        else:
            self.values[node] = places
        return False


def _target_name(node: fx.Node) -> str:
    if node.op != "call_function":
        return node.op
    return packet_name(node)

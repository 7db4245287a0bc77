"""From a joint graph to a `Problem`. The only module that reads ``node.meta``."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from gcpass._errors import UnsupportedGraph
from gcpass._problem import Constraint, Kernel, Op, Phase, Problem, Rule, Storage
from gcpass.fx import _compat
from gcpass.fx._costs import (
    Hardware,
    op_picoseconds,
    tensor_nbytes,
    traffic_picoseconds,
    workspace_nbytes,
)

aten = torch.ops.aten


@dataclass(frozen=True)
class Analysis:
    """A joint graph and the problem read off it.

    Attributes:
        joint: the graph, cleaned; mutated inputs that the backward reads are cloned first.
        problem: what the solvers see.
        nodes: the graph node of each op of the problem.
        num_fwd_outputs: how many of the joint graph's outputs the forward returns.
    """

    joint: fx.GraphModule
    problem: Problem
    nodes: tuple[fx.Node, ...]
    num_fwd_outputs: int

    def index_of(self) -> dict[str, int]:
        return {node.name: index for index, node in enumerate(self.nodes)}


def analyze(
    joint: fx.GraphModule, num_fwd_outputs: int, hardware: Hardware, codegen: str
) -> Analysis:
    """Read the planning problem off a joint graph.

    Args:
        joint: as AOTAutograd hands it to a partitioner; cleaned in place.
        num_fwd_outputs: how many of its outputs are the forward's.
        hardware: prices the ops.
        codegen: ``"eager"`` or ``"inductor"``.

    Returns:
        The graph and the problem.

    Raises:
        UnsupportedGraph: the graph holds something the planner cannot reason about.
    """
    joint = _compat.clean_user_tags(_compat.clean_graph(joint))
    _clone_mutated_inputs(joint)
    phases = _classify(joint, num_fwd_outputs)
    order = _running_order(joint, phases)
    problem = _Builder(joint, order, phases, num_fwd_outputs, hardware, codegen).build()
    return Analysis(joint, problem, tuple(order), num_fwd_outputs)


def output_nodes(
    joint: fx.GraphModule, num_fwd_outputs: int
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The joint graph's outputs: the forward's and the backward's."""
    (output,) = joint.graph.find_nodes(op="output")
    leaves = list(output.args[0])
    forward = [n for n in leaves[:num_fwd_outputs] if isinstance(n, fx.Node)]
    backward = [n for n in leaves[num_fwd_outputs:] if isinstance(n, fx.Node)]
    return forward, backward


# -- phases -------------------------------------------------------------------------------------


def _is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _is_backward_only_input(node: fx.Node) -> bool:
    return node.op == "placeholder" and (
        "bwd_seed_offset" in str(node.target) or "bwd_base_offset" in str(node.target)
    )


def _classify(joint: fx.GraphModule, num_fwd_outputs: int) -> dict[fx.Node, Phase]:
    """The phase of every node but the output."""
    forward_outputs, _ = output_nodes(joint, num_fwd_outputs)
    phases: dict[fx.Node, Phase] = {}
    for node in joint.graph.nodes:
        if node.op == "output":
            continue
        if _is_tangent(node) or _is_backward_only_input(node):
            phases[node] = Phase.BACKWARD
        elif node.op in ("placeholder", "get_attr"):
            phases[node] = Phase.INPUT
        elif _compat.must_be_in_backward(node) or any(
            phases[read] is Phase.BACKWARD for read in node.all_input_nodes
        ):
            phases[node] = Phase.BACKWARD
        else:
            phases[node] = Phase.EITHER
    required = [n for n in forward_outputs if phases[n] is Phase.EITHER]
    required += [n for n, p in phases.items() if p is Phase.EITHER and _runs_for_its_effect(n)]
    while required:
        node = required.pop()
        if phases[node] is Phase.EITHER:
            phases[node] = Phase.FORWARD
            required.extend(node.all_input_nodes)
    return phases


def _runs_for_its_effect(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        _compat.must_be_in_forward(node)
        or (not node.users and node.is_impure(impure_random=False))
        or node.target is _compat.with_effects
    )


# -- mutated inputs -----------------------------------------------------------------------------


def _mutated_inputs(joint: fx.GraphModule) -> set[fx.Node]:
    """Inputs whose memory the forward overwrites."""
    mutated: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op != "call_function" or _compat.must_be_in_backward(node):
            continue
        for argument in _mutated_arguments(node):
            root = _view_root(argument)
            if root.op in ("placeholder", "get_attr"):
                mutated.add(root)
    return mutated


def _mutated_arguments(node: fx.Node) -> list[fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    found: list[fx.Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            )
            values = value if isinstance(value, (list, tuple)) else [value]
            found.extend(v for v in values if isinstance(v, fx.Node))
    return found


def _view_root(node: fx.Node) -> fx.Node:
    while (viewed := _viewed(node)) is not None:
        node = viewed
    return node


def _clone_mutated_inputs(joint: fx.GraphModule) -> None:
    """Let everything that reads an input before its mutation read a copy of it.

    torch's partitioner re-reads such an input in the backward, after the mutation, and returns
    wrong gradients (pytorch#197039). The copy can be kept; where a plan does not keep it,
    `drop_unkept_clones` takes it out of the forward again.
    """
    order = {node: position for position, node in enumerate(joint.graph.nodes)}
    for node in _mutated_inputs(joint):
        readers = [u for u in node.users if u.op != "output" and node not in _mutated_arguments(u)]
        if not readers or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        with joint.graph.inserting_before(min(readers, key=lambda reader: order[reader])):
            copy = joint.graph.call_function(aten.clone.default, (node,))
        copy.name = f"{node.name}{_CLONE_SUFFIX}"
        copy.meta = {"val": aten.clone.default(node.meta["val"]), "partitioner_tag": "is_forward"}
        for user in readers:
            user.replace_input_with(node, copy)
    joint.recompile()


_CLONE_SUFFIX = "_before_mutation"


def drop_unkept_clones(forward: fx.GraphModule) -> None:
    """Let the forward read the input itself where the copy of it is not handed on."""
    for node in list(forward.graph.nodes):
        if node.name.endswith(_CLONE_SUFFIX) and not any(u.op == "output" for u in node.users):
            (source,) = node.all_input_nodes
            node.replace_all_uses_with(source)
            forward.graph.erase_node(node)
    forward.recompile()


# -- order --------------------------------------------------------------------------------------


def _running_order(joint: fx.GraphModule, phases: dict[fx.Node, Phase]) -> list[fx.Node]:
    """Inputs, the forward range, the backward.

    AOTAutograd traces what only the backward wants late; here such a node stands right after the
    last of its inputs (or before its first reader), where the forward would compute it.
    """
    nodes = [n for n in joint.graph.nodes if n.op != "output"]
    inputs = [n for n in nodes if phases[n] is Phase.INPUT]
    backward = [n for n in nodes if phases[n] is Phase.BACKWARD]
    place: dict[fx.Node, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        if phases[node] is Phase.FORWARD:
            place[node] = (position, position)
    end = len(nodes)
    for position, node in enumerate(nodes):
        if phases[node] is Phase.EITHER:
            reads = [place[r][0] for r in node.all_input_nodes if r in place]
            place[node] = (max(reads), position) if reads else (end, position)
    for position in range(end - 1, -1, -1):  # nodes that read inputs only: as late as possible
        node = nodes[position]
        if phases[node] is Phase.EITHER and place[node][0] == end:
            uses = [place[u][0] for u in node.users if u in place and place[u][0] < end]
            if uses:
                place[node] = (min(uses) - 1, position)
    forward = sorted(place, key=lambda n: place[n])
    return inputs + topological(forward) + backward


def topological(nodes: list[fx.Node]) -> list[fx.Node]:
    """``nodes`` with every node after its inputs, otherwise as they stand."""
    pending = set(nodes)
    ordered: list[fx.Node] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if node not in pending:
                stack.pop()
                continue
            missing = [r for r in node.all_input_nodes if r in pending]
            if missing:
                stack.extend(missing)
            else:
                pending.discard(node)
                ordered.append(node)
                stack.pop()
    return ordered


# -- ops and storages ---------------------------------------------------------------------------


def _viewed(node: fx.Node) -> fx.Node | None:
    """The node whose memory ``node`` shares, if it allocates none of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return source if isinstance(source, fx.Node) and _viewed(source) is not None else None
    if node.target in (aten._unsafe_view.default, aten.lift_fresh.default):
        return _first_node(node)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return None
    if schema.name == "_c10d_functional::wait_tensor":
        return _first_node(node)
    if not schema.returns or schema.is_mutable:
        return _first_node(node) if node.target is aten.copy_.default else None
    if any(r.alias_info is None for r in schema.returns):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and position < len(node.args):
            viewed = node.args[position]
            return viewed if isinstance(viewed, fx.Node) else None
    return None


def _first_node(node: fx.Node) -> fx.Node | None:
    return next((a for a in node.args if isinstance(a, fx.Node)), None)


class _Builder:
    """Builds ops and storages, one node at a time, in running order."""

    def __init__(
        self,
        joint: fx.GraphModule,
        order: list[fx.Node],
        phases: dict[fx.Node, Phase],
        num_fwd_outputs: int,
        hardware: Hardware,
        codegen: str,
    ) -> None:
        self.joint, self.order, self.phases = joint, order, phases
        self.outputs, self.gradients = output_nodes(joint, num_fwd_outputs)
        self.hardware, self.codegen = hardware, codegen
        self.index = {node: i for i, node in enumerate(order)}
        self.mutated = _mutated_inputs(joint)
        self.storages: list[Storage] = []
        self.values: dict[fx.Node, tuple[int, ...]] = {}  # storages of each node's value

    def build(self) -> Problem:
        ops = tuple(self._op(index, node) for index, node in enumerate(self.order))
        index = self.index
        return Problem(
            ops=ops,
            storages=tuple(self.storages),
            outputs=tuple(dict.fromkeys(index[n] for n in self.outputs if n in index)),
            gradients=tuple(dict.fromkeys(index[n] for n in self.gradients if n in index)),
            codegen=self.codegen,
        )

    def _op(self, index: int, node: fx.Node) -> Op:
        phase = self.phases[node]
        value = node.meta.get("val")
        self._check_value(node, value)
        produces = self._place(index, node, value)
        cost = traffic = workspace = 0
        if node.op == "call_function" and produces and node.target is not operator.getitem:
            arguments = fx.node.map_arg(node.args, lambda n: n.meta.get("val"))
            keywords = fx.node.map_arg(node.kwargs, lambda n: n.meta.get("val"))
            cost = op_picoseconds(node, arguments, keywords, value, self.hardware)
            traffic = traffic_picoseconds(value, self.hardware)
            if self.hardware.workspaces and self.codegen == "eager":
                workspace = workspace_nbytes(node, arguments, value)
        module, source = _origin(node)
        return Op(
            name=node.name,
            target="tangent" if _is_tangent(node) else _target_name(node),
            phase=phase,
            inputs=tuple(dict.fromkeys(self.index[n] for n in node.all_input_nodes)),
            storages=self.values[node],
            picoseconds=cost,
            traffic_picoseconds=traffic,
            workspace_nbytes=workspace,
            kernel=_kernel(node),
            constraint=self._constraint(node),
            module=module,
            source=source,
        )

    def _check_value(self, node: fx.Node, value: object) -> None:
        known = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if item is not None and not isinstance(item, known):
                raise UnsupportedGraph(
                    f"{node.name} ({_target_name(node)}) has a value of type "
                    f"{type(item).__name__}, which is not a tensor or a number"
                )

    def _place(self, index: int, node: fx.Node, value: object) -> bool:
        """Give the node's value its storages; whether the node allocates any."""
        viewed = _viewed(node)
        if viewed is not None:
            self.values[node] = self.values[viewed]
            if "wait_tensor" in str(node.target):  # the waited value is what can be kept
                for s in self.values[node]:
                    old = self.storages[s]
                    self.storages[s] = Storage(old.nbytes, old.producer, index)
            return False
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            return self._place_item(index, node)
        items = value if isinstance(value, (list, tuple)) else [value]
        single = not isinstance(value, (list, tuple))
        own: list[int] = []
        for item in items:
            if isinstance(item, torch.Tensor) or (single and _compat.is_symbol(node)):
                own.append(len(self.storages))
                holder = index if single else None
                self.storages.append(Storage(tensor_nbytes(item), index, holder))
            else:
                own.append(-1)
        self.values[node] = tuple(own) if not single else tuple(s for s in own if s >= 0)
        if not single:
            self.values[node] = tuple(s if s >= 0 else self._nothing(index) for s in own)
        return any(s >= 0 for s in own)

    def _nothing(self, index: int) -> int:
        """An empty storage, so that items of a tuple keep their places."""
        self.storages.append(Storage(0, index, None))
        return len(self.storages) - 1

    def _place_item(self, index: int, node: fx.Node) -> bool:
        source, position = node.args[0], node.args[1]
        assert isinstance(source, fx.Node)
        places = self.values[source]
        if isinstance(position, int) and -len(places) <= position < len(places):
            s = places[position]
            self.values[node] = (s,)
            if isinstance(node.meta.get("val"), torch.Tensor):
                old = self.storages[s]
                if old.holder is None:
                    self.storages[s] = Storage(old.nbytes, old.producer, index)
        else:
            self.values[node] = places
        return False

    def _constraint(self, node: fx.Node) -> Constraint | None:
        if node in self.mutated:
            return Constraint(Rule.NEVER_RECOMPUTE, "an input that the forward overwrites")
        if self.phases[node] in (Phase.INPUT, Phase.BACKWARD):
            return None
        recompute = node.meta.get("recompute")
        if recompute == _compat.CheckpointPolicy.MUST_SAVE:
            return Constraint(Rule.KEEP, "the user's checkpointing policy saves it")
        if recompute == _compat.CheckpointPolicy.MUST_RECOMPUTE:
            return Constraint(Rule.NEVER_KEEP, "the user's checkpointing policy recomputes it")
        target = node.target
        schema = getattr(target, "_schema", None)
        if is_random(node):
            return Constraint(Rule.NEVER_RECOMPUTE, "a random op: a second run draws other numbers")
        if getattr(target, "namespace", "") in ("_c10d_functional", "c10d", "c10d_functional"):
            return Constraint(Rule.NEVER_RECOMPUTE, "a collective: every rank must run it once")
        if target is _compat.with_effects:
            return Constraint(Rule.NEVER_RECOMPUTE, "an op with side effects")
        if schema is not None and schema.is_mutable:
            return Constraint(Rule.NEVER_RECOMPUTE, "it overwrites one of its arguments")
        if isinstance(target, _compat.HigherOrderOperator) and target.name() not in (
            "flex_attention",
            "triton_kernel_wrapper_functional",
        ):
            return Constraint(
                Rule.NEVER_RECOMPUTE, "a higher-order op: its body is not looked into"
            )
        if any(_view_root(read) in self.mutated for read in node.all_input_nodes):
            if _viewed(node) is None:
                return Constraint(
                    Rule.NEVER_RECOMPUTE, "it reads an input that the forward overwrites later"
                )
        return None


def is_random(node: fx.Node) -> bool:
    """Whether a second run of ``node`` may return other numbers."""
    target = node.target
    if str(target) in (
        "inductor_prims.inductor_seed.default",
        "inductor_prims.inductor_seeds.default",
    ):
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    schema = getattr(target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":  # attention draws nothing without dropout
            given = (
                node.args[position]
                if position < len(node.args)
                else node.kwargs.get("dropout_p", argument.default_value)
            )
            return given != 0
    return True


_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "any", "all", "argmax",
    "argmin", "prod", "prepare_softmax_online", "logsumexp", "_log_softmax", "_softmax",
}  # fmt: skip
_POINTWISE = {
    "convert_element_type", "_to_copy", "full", "full_like", "zeros_like", "ones_like", "iota",
    "arange", "scalar_tensor", "index", "gather", "embedding", "constant_pad_nd", "inductor_random",
    "inductor_lookup_seed", "copy", "cat", "repeat", "slice_scatter", "select_scatter",
    "zeros", "ones", "clone", "copy_", "masked_fill", "_low_memory_max_pool_offsets_to_indices",
    "upsample_nearest2d", "avg_pool2d", "triu", "tril", "expand_as", "flip",
}  # fmt: skip


def _kernel(node: fx.Node) -> Kernel:
    """How Inductor runs the node (`torch/_inductor/lowering.py`)."""
    if node.op != "call_function":
        return Kernel.EXTERN
    packet = getattr(node.target, "_overloadpacket", None)
    name = str(packet).rpartition(".")[2]
    if name in _REDUCTIONS:
        return Kernel.REDUCTION
    if name in _POINTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return Kernel.POINTWISE
    return Kernel.EXTERN


def _target_name(node: fx.Node) -> str:
    if node.op != "call_function":
        return node.op
    packet = getattr(node.target, "_overloadpacket", None)
    return str(packet) if packet is not None else getattr(node.target, "__name__", str(node.target))


def _origin(node: fx.Node) -> tuple[str, str]:
    """The module path and the source line of the user's code that ``node`` came from."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values()] if isinstance(stack, dict) else []
    module = _tidy_path(paths[-1]) if paths else ""
    lines = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File ")
    ]
    if not lines:
        return module, ""
    parts = lines[-1].split(",")
    file = parts[0].removeprefix("File ").strip('" ').rpartition("/")[2]
    return module, f"{file}:{parts[1].strip().removeprefix('line ')}" if len(parts) > 1 else file


def _tidy_path(path: str) -> str:
    """``L['self'].layers[3]._modules['mlp']`` as ``layers.3.mlp``."""
    for old in ("_modules['", "L['", "G['", "['", "[", "__getattr__('"):
        path = path.replace(old, ".")
    for old in ("']", "]", "')"):
        path = path.replace(old, "")
    parts = [p for p in path.split(".") if p and p not in ("self", "_modules")]
    return ".".join(parts)


def saved_nodes(analysis: Analysis, kept: Iterable[int]) -> list[fx.Node]:
    return [analysis.nodes[k] for k in sorted(kept)]

"""From a plan to the forward and backward graphs that run it.

torch's own extraction splits the joint graph around the kept values; the two graphs are then put
in exactly the order that was evaluated, so what runs is what was judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from gcpass._evaluate import Evaluation
from gcpass._planning import Planned
from gcpass.fx import _compat
from gcpass.fx._analyze import Analysis
from gcpass.fx._phases import topological
from gcpass.fx._random import is_random
from gcpass.fx._repeat import repeat_graph
from gcpass.fx._sums import keep_sums_apart
from gcpass.fx._views import drop_unkept_clones


def lower(
    analysis: Analysis,
    planned: Planned,
    static_lifetime_input_indices: list[int] | None = None,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split the joint graph into the forward and backward of one plan.

    Args:
        analysis: the joint graph and its problem.
        planned: what is kept, and the plan's evaluation, which fixes both orders.
        static_lifetime_input_indices: inputs whose memory never moves, as AOTAutograd lists them.

    Returns:
        The forward and the backward graph.
    """
    if planned.repeated is not None:
        analysis = repeat_graph(analysis, planned.repeated)
    evaluation = planned.evaluation
    saved = [analysis.nodes[op] for op in _passed_on(analysis, planned.kept, evaluation)]
    symbols = [n for n in saved if _compat.is_symbol(n)]
    objects = [n for n in saved if _compat.is_opaque(n)]
    values = [n for n in saved if not (_compat.is_symbol(n) or _compat.is_opaque(n))]
    forward, backward = _compat.extract_modules(
        analysis.joint,
        values,
        symbols,
        objects,
        analysis.num_fwd_outputs,
        static_lifetime_input_indices,
    )
    drop_unkept_clones(forward)
    names = [node.name for node in analysis.nodes]
    _reorder(forward, [names[op] for op in evaluation.forward_order])
    _reorder(backward, [names[op] for op in evaluation.backward_order])
    _drop_unread_draws(backward)
    if analysis.problem.codegen == "inductor":
        keep_sums_apart(backward)
    forward, backward = _compat.functionalize_replayed_rng(
        analysis.joint, forward, backward, len(symbols)
    )
    return _compat.finish_modules(forward, backward)


def _passed_on(analysis: Analysis, kept: Collection[int], evaluation: Evaluation) -> list[int]:
    """What the forward hands to the backward: kept values and the inputs the backward reads."""
    problem = analysis.problem
    start = problem.forward_range.start
    kept = frozenset(kept)
    read: set[int] = set(problem.gradients)
    for op in evaluation.backward_order:
        read.update(problem.ops[op].inputs)
    inputs = {
        op
        for op in read
        if op < start and problem.is_input(op) and analysis.nodes[op].op == "placeholder"
    }
    return sorted(inputs | {k for k in kept if k in read})


def _drop_unread_draws(backward: fx.GraphModule) -> None:
    """Erase random ops that the forward ran and nothing in the backward reads.

    Under Inductor's ``fallback_random`` torch's extraction leaves each that needs nothing else, as
    an effect: it takes time and memory that no plan counts, and the next step draws other numbers.
    """
    for node in reversed(list(backward.graph.nodes)):
        if node.op == "call_function" and not node.users and is_random(node):
            backward.graph.erase_node(node)
    backward.recompile()


def _reorder(module: fx.GraphModule, names: Sequence[str]) -> None:
    """Put the calls of ``module`` in the order of ``names``; others stay after their inputs."""
    rank = {name: position for position, name in enumerate(names)}
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    place: dict[fx.Node, tuple[int, int]] = {}
    previous = -1
    for position, node in enumerate(calls):
        previous = rank.get(node.name, previous)
        place[node] = (previous, position)
    (output,) = module.graph.find_nodes(op="output")
    for node in topological(sorted(calls, key=lambda n: place[n])):
        output.prepend(node)
    module.recompile()

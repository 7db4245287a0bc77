"""What must never be recomputed, or never kept, and why (what fails silently when it is)."""

from __future__ import annotations

import torch
from torch import fx

from gcpass._problem import Constraint, Phase, Rule
from gcpass.fx import _compat, _meta
from gcpass.fx._views import base_of, view_root


def constraint(node: fx.Node, phase: Phase, mutated: set[fx.Node]) -> Constraint | None:
    """The rule on a node, with its reason; None for most.

    Args:
        node: a node of the joint graph.
        phase: when it runs.
        mutated: the inputs that the forward overwrites.
    """
    if node in mutated:
        return Constraint(Rule.NEVER_RECOMPUTE, "an input that the forward overwrites")
    if phase in (Phase.INPUT, Phase.BACKWARD):
        return None
    if _meta.must_save(node):
        return Constraint(Rule.KEEP, "the user's checkpointing policy saves it")
    if _meta.must_recompute(node):
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
        return Constraint(Rule.NEVER_RECOMPUTE, "a higher-order op: its body is not looked into")
    if base_of(node) is None and any(view_root(r) in mutated for r in node.all_input_nodes):
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
            return bool(given != 0)
    return True

"""What must never be recomputed, or never kept, and why (what fails silently when it is)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from gcpass._problem import Constraint, Op, Phase, Rule, Storage
from gcpass.fx import _compat, _meta
from gcpass.fx._call import TORCHS_OWN
from gcpass.fx._compat import CheckpointPolicy as Policy
from gcpass.fx._random import is_random
from gcpass.fx._views import base_of, view_root


@dataclass(frozen=True)
class Rules:
    """What is known of a graph as a whole before its nodes are ruled on.

    Attributes:
        mutated: the inputs that the forward overwrites.
        choices: discrete choices that a second run could make differently.
        tags: what the user's checkpointing says of each node, before torch added to it.
    """

    mutated: set[fx.Node]
    choices: set[fx.Node]
    tags: Mapping[fx.Node, _compat.CheckpointPolicy | None]

    def constraint(self, node: fx.Node, phase: Phase) -> Constraint | None:
        """The rule on a node, with its reason; None for most."""
        if node in self.mutated:
            return Constraint(Rule.NEVER_RECOMPUTE, "an input that the forward overwrites")
        if phase in (Phase.INPUT, Phase.BACKWARD):
            return None
        once = self._runs_once(node)
        if once is not None:
            return Constraint(Rule.NEVER_RECOMPUTE, once)
        policy = _meta.checkpoint_policy(node)
        if policy is Policy.MUST_RECOMPUTE:
            return Constraint(Rule.NEVER_KEEP, "the user's checkpointing policy recomputes it")
        if is_random(node):
            return Constraint(Rule.NEVER_RECOMPUTE, "a random op: a second run draws other numbers")
        if isinstance(node.target, _compat.HigherOrderOperator) and node.target.name() not in (
            "flex_attention",
            "triton_kernel_wrapper_functional",
        ):
            return Constraint(
                Rule.NEVER_RECOMPUTE, "a higher-order op: its body is not looked into"
            )
        if _is_opaque(node):
            return Constraint(
                Rule.NEVER_RECOMPUTE,
                "a custom op: it may be dear, or do what its schema does not say (if it is pure "
                "and cheap, give it the tag torch.Tag.pointwise)",
            )
        if node in self.choices:
            return Constraint(
                Rule.NEVER_RECOMPUTE, "a discrete choice: other roundings would turn it over"
            )
        if policy is Policy.MUST_SAVE and not self._added_by_torch(node):
            return Constraint(Rule.KEEP, "the user's checkpointing policy saves it")
        if _is(policy, "MUST_CPU_OFFLOAD"):
            return Constraint(Rule.KEEP, "the user's checkpointing policy offloads it: kept here")
        return None

    def preference(self, node: fx.Node, phase: Phase) -> Constraint | None:
        """The rule that the user prefers for a node, where the budget allows it."""
        if phase in (Phase.INPUT, Phase.BACKWARD) or self._runs_once(node) is not None:
            return None
        maker = _maker(node)
        if maker in self.choices or isinstance(maker.target, _compat.HigherOrderOperator):
            return None
        policy = _meta.checkpoint_policy(node)
        if policy is Policy.PREFER_SAVE or _is(policy, "PREFER_CPU_OFFLOAD"):
            return Constraint(Rule.KEEP, "the user's checkpointing policy prefers to save it")
        if policy is Policy.MUST_SAVE and self._added_by_torch(node):
            return Constraint(Rule.KEEP, "it passes from one of the user's regions to another")
        if policy is Policy.PREFER_RECOMPUTE:
            return Constraint(Rule.NEVER_KEEP, "in a region that the user checkpointed")
        return None

    def notes(self) -> tuple[str, ...]:
        """What becomes of tags that are not taken at their word."""
        offloading = ("MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD")
        count = sum(_is(tag, *offloading) for tag in self.tags.values())
        if not count:
            return ()
        return (
            f"gcpass offloads nothing to the CPU: {count} ops that the user's checkpointing would "
            "offload are taken as ones to save, where they are",
        )

    def _runs_once(self, node: fx.Node) -> str | None:
        """Why ``node`` must not run again, whatever the user's checkpointing says of it."""
        node = _maker(node)
        target = node.target
        schema = getattr(target, "_schema", None)
        if getattr(target, "namespace", "") in ("_c10d_functional", "c10d", "c10d_functional"):
            return "a collective: every rank must run it once"
        if target is _compat.with_effects:
            return "an op with side effects"
        if schema is not None and schema.is_mutable:
            return "it overwrites one of its arguments"
        if base_of(node) is None and any(
            view_root(read) in self.mutated for read in node.all_input_nodes
        ):
            return "it reads an input that the forward overwrites later"
        return None

    def _added_by_torch(self, node: fx.Node) -> bool:
        """Whether torch itself turned a preference into a value to save, between two regions."""
        before = self.tags.get(node)
        return before is Policy.PREFER_RECOMPUTE and not _meta.has_backward_hook(node)


def keep_what_is_viewed(ops: Sequence[Op], storages: Sequence[Storage]) -> tuple[Op, ...]:
    """Hand a rule to keep a view on to the op that holds what it shows.

    A view has nothing of its own to keep. What its holder itself is told comes second: a value
    that passes from one checkpointed region to another may be a view of one to be recomputed.
    But what must never run again stays so, whatever is kept of it.
    """
    ruled = list(ops)
    for index, op in enumerate(ops):
        if op.obeys(Rule.KEEP):
            told = {"constraint": op.constraint, "preference": None}
        elif op.preference is not None and op.preference.rule is Rule.KEEP:
            told = {"preference": op.preference}
        else:
            continue
        for s in op.storages:
            holder = storages[s].holder
            if holder in (None, index) or ops[holder].phase is Phase.INPUT:
                continue
            if not ops[holder].obeys(Rule.NEVER_RECOMPUTE):
                ruled[holder] = replace(ruled[holder], **told)
    return tuple(ruled)


def _is(tag: _compat.CheckpointPolicy | None, *names: str) -> bool:
    """Whether a tag is one of some names, which older releases do not have."""
    return tag is not None and tag.name in names


def _maker(node: fx.Node) -> fx.Node:
    """What makes the value: for an item of a tuple the tuple's op, for a wait the collective."""
    while node.target is operator.getitem or _is_wait(node):
        node = node.all_input_nodes[0]
    return node


def _is_opaque(node: fx.Node) -> bool:
    """Whether the user registered the operator, and did not declare what it does."""
    if getattr(node.target, "_schema", None) is None:
        return False
    declared = torch.Tag.pointwise in getattr(node.target, "tags", ())
    return getattr(node.target, "namespace", "") not in TORCHS_OWN and not declared


def _is_wait(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name == "_c10d_functional::wait_tensor"

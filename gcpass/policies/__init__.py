"""Manual policies: fixed rules for what to keep, to compare the optimiser against.

Each is a frozen object with a name and a fingerprint; it can be given wherever a policy's name can.

| name | what is kept |
|---|---|
| ``none`` | everything |
| ``full`` | nothing: all is recomputed from the inputs of the graph |
| ``per_block`` | what goes into each repeated block: ``gradient_checkpointing=True`` |
| ``every_k:K`` | what goes into every K-th block |
| ``sqrt`` | what goes into each of about sqrt(L) groups of blocks (Chen et al. 2016, section 4) |
| ``selective_attention`` | all but attention's weights (Korthikanti et al. 2022, section 5) |
| ``sac_matmul``, ``sac_matmul:K`` | matrix products, convolutions and attentions, or one in K |
| ``torch``, ``torch:B`` | what torch's own partitioner keeps, at its budget B |

A function of one `Row` that returns ``"save"``, ``"recompute"`` or None is a policy too: what it
leaves open, the optimiser decides within the budget.
"""

from __future__ import annotations

from gcpass._errors import OptionError, did_you_mean
from gcpass.policies._blocks import Block, find_blocks
from gcpass.policies._manual import (
    FULL,
    NONE,
    PER_BLOCK,
    SELECTIVE_ATTENTION,
    SQRT,
    every_k,
    sac_matmul,
)
from gcpass.policies._marked import Region
from gcpass.policies._modules import ModuleRules, read_rules, unmatched
from gcpass.policies._parts import SAID
from gcpass.policies._policy import Policy, RowRule
from gcpass.policies._precedence import under_rules

__all__ = [
    "FULL",
    "NONE",
    "PER_BLOCK",
    "SELECTIVE_ATTENTION",
    "SQRT",
    "Block",
    "ModuleRules",
    "Policy",
    "PolicyLike",
    "Region",
    "every_k",
    "find_blocks",
    "find_policy",
    "find_region_policy",
    "read_rules",
    "sac_matmul",
    "torch_policy",
    "under_rules",
    "unmatched",
]


def torch_policy(budget: float = 1.0) -> Policy:
    """torch's own partitioner at ``activation_memory_budget=budget``, in [0, 1].

    Raises:
        OptionError: the budget is not in [0, 1].
    """
    if not 0 <= budget <= 1:
        raise OptionError(f"policy='torch:{budget:g}': torch's budget must be between 0 and 1")
    return Policy("torch" if budget == 1 else f"torch:{budget:g}", torch_budget=float(budget))


PolicyLike = str | Policy | RowRule  # what an option or argument may be given as, or None


def find_policy(policy: PolicyLike | None) -> Policy | None:
    """The policy meant by an option; None is the optimiser.

    Raises:
        OptionError: there is no such policy.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    if callable(policy):
        return Policy(getattr(policy, "__name__", type(policy).__name__), rule=policy)
    if not isinstance(policy, str):
        raise OptionError(f"policy={policy!r} is not a policy's name or a gcpass.policies object")
    named = {p.name: p for p in (NONE, FULL, PER_BLOCK, SQRT, SELECTIVE_ATTENTION, sac_matmul())}
    if policy in named:
        return named[policy]
    head, separator, tail = policy.partition(":")
    if head == "torch":
        return torch_policy(_number(policy, tail) if separator else 1.0)
    if head == "every_k" and separator:
        return every_k(_whole(policy, tail))
    if head == "sac_matmul":
        return sac_matmul(_whole(policy, tail))
    known = [*named, "torch", "torch:0.5", "every_k:2", "sac_matmul:2"]
    raise OptionError(f"policy={policy!r} is not known; {did_you_mean(policy, known)}")


def find_region_policy(policy: PolicyLike | None) -> Policy | str | None:
    """The policy meant for a region: ``"save"``, ``"recompute"``, or as for the whole graph.

    Raises:
        OptionError: there is no such policy, or it is torch's partitioner, which knows no regions.
    """
    if isinstance(policy, str) and policy in SAID:
        return policy
    found = find_policy(policy)
    if found is not None and found.torch_budget is not None:
        raise OptionError(f"policy={found.name!r} is of whole graphs, and not of a region")
    if found == NONE:
        return "save"
    return "recompute" if found == FULL else found


def _number(policy: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(f"policy={policy!r}: {text!r} is not a number") from error


def _whole(policy: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"policy={policy!r}: {text!r} is not a whole number of at least 1")
    return int(text)

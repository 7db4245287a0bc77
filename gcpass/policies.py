"""Manual policies: fixed rules for what to keep, to compare the optimiser against.

A policy is a frozen object with a name and a fingerprint; it can be given wherever a policy's name
can. Those that need torch's own partitioner only carry its setting; `gcpass.fx` runs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType

from gcpass._errors import OptionError, did_you_mean
from gcpass._problem import Phase, Problem
from gcpass._solvers._cut import CutNetwork


@dataclass(frozen=True)
class Policy:
    """A rule that chooses what to keep.

    Attributes:
        name: what it is called in options and reports.
        choose: the ops to keep of a problem; None for torch's own partitioner.
        torch_budget: torch's ``activation_memory_budget``, for torch's own partitioner.
    """

    name: str
    choose: Callable[[Problem], frozenset[int]] | None = None
    torch_budget: float | None = None

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes what the policy keeps.

        A plain function is told apart by its code, defaults and closure; of any other callable only
        this one object in this process is known to choose alike.
        """
        chooser = "torch" if self.choose is None else _code_of(self.choose)
        return f"{self.name}:{chooser}:{self.torch_budget}"


def _code_of(choose: Callable[..., object]) -> str:
    if not isinstance(choose, FunctionType):
        return f"{type(choose).__qualname__}:{id(choose)}:{uuid.uuid4()}"
    code = choose.__code__
    closure = tuple(cell.cell_contents for cell in choose.__closure__ or ())
    parts = (code.co_code, _constants(code), code.co_names, choose.__defaults__, closure)
    return f"{choose.__module__}.{choose.__qualname__}:{parts!r}"


def _constants(code: CodeType) -> tuple[object, ...]:
    """A code object's constants, inner functions as their own code (their repr has an address)."""
    return tuple(
        (c.co_code, _constants(c), c.co_names) if isinstance(c, CodeType) else c
        for c in code.co_consts
    )


def _keep_everything(problem: Problem) -> frozenset[int]:
    """All that the forward computes anyway; what the backward does not read is not kept."""
    return frozenset(
        op
        for op, storage in problem.kept_storage.items()
        if problem.ops[problem.storages[storage].producer].phase is Phase.FORWARD
        or problem.ops[op].constraint is not None
    )


def _keep_nothing(problem: Problem) -> frozenset[int]:
    """Only what may not be recomputed, or the smallest values that stand for it."""
    return CutNetwork(problem, problem.forward_range, ()).smallest().kept


NONE = Policy("none", _keep_everything)
FULL = Policy("full", _keep_nothing)


def torch_policy(budget: float = 1.0) -> Policy:
    """torch's own partitioner at ``activation_memory_budget=budget``, in [0, 1].

    Raises:
        OptionError: the budget is not in [0, 1].
    """
    if not 0 <= budget <= 1:
        raise OptionError(f"policy='torch:{budget:g}': torch's budget must be between 0 and 1")
    return Policy("torch" if budget == 1 else f"torch:{budget:g}", torch_budget=float(budget))


def find_policy(policy: str | Policy | None) -> Policy | None:
    """The policy meant by an option; None is the optimiser.

    Raises:
        OptionError: there is no such policy.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    named = {p.name: p for p in (NONE, FULL)}
    if policy in named:
        return named[policy]
    if not isinstance(policy, str):
        raise OptionError(f"policy={policy!r} is not a policy's name or a gcpass.policies object")
    head, _, tail = policy.partition(":")
    if head == "torch":
        try:
            return torch_policy(float(tail) if tail else 1.0)
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"policy={policy!r}: {tail!r} is not a number") from error
    raise OptionError(
        f"policy={policy!r} is not known; {did_you_mean(policy, [*named, 'torch', 'torch:0.5'])}"
    )

"""What a policy is: a frozen rule for what to keep, with a name and a fingerprint."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType

from gcpass._explain import Row
from gcpass._problem import Problem

RowRule = Callable[[Row], "str | None"]

_IDENTITIES: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Policy:
    """A rule that chooses what to keep.

    Of ``choose``, ``rule`` and ``torch_budget`` exactly one is given.

    Attributes:
        name: what it is called in options and reports.
        choose: the ops to keep of a problem.
        torch_budget: torch's ``activation_memory_budget``, for torch's own partitioner.
        rule: for one value of the forward, ``"save"``, ``"recompute"``, or None to leave it to the
            optimiser.
    """

    name: str
    choose: Callable[[Problem], frozenset[int]] | None = None
    torch_budget: float | None = None
    rule: RowRule | None = None

    @property
    def fixed(self) -> bool:
        """Whether the policy decides everything, whatever the budget."""
        return self.rule is None

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes what the policy keeps.

        A plain function is told apart by its code, defaults and closure; of any other callable only
        this one object in this process is known to choose alike (as long as nothing changes it).
        """
        code = self.choose or self.rule
        chooser = "torch" if code is None else _code_of(code)
        return f"{self.name}:{chooser}:{self.torch_budget}"


def _code_of(choose: Callable[..., object]) -> str:
    if not isinstance(choose, FunctionType):
        return f"{type(choose).__qualname__}:{_identity(choose)}"
    code = choose.__code__
    closure = tuple(cell.cell_contents for cell in choose.__closure__ or ())
    parts = (code.co_code, _constants(code), code.co_names, choose.__defaults__, closure)
    return f"{choose.__module__}.{choose.__qualname__}:{parts!r}"


def _identity(choose: Callable[..., object]) -> str:
    """A name of an object that no other object in any process has."""
    new = uuid.uuid4().hex
    try:
        return _IDENTITIES.setdefault(choose, new)
    except TypeError:  # it cannot be hashed, or not referred to weakly: not known again
        return new


def _constants(code: CodeType) -> tuple[object, ...]:
    """A code object's constants, inner functions as their own code (their repr has an address)."""
    return tuple(
        (c.co_code, _constants(c), c.co_names) if isinstance(c, CodeType) else c
        for c in code.co_consts
    )

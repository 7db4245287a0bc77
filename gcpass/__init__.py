"""gcpass: the least recomputation whose real peak stays within a memory budget.

``torch.compile(model, backend="gcpass", options={"memory_budget": "6GiB"})`` needs no import of
this package. The names below plan and measure without compiling by hand.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gcpass import policies
from gcpass._errors import CaptureError, GcpassError, InfeasibleBudget, OptionError
from gcpass._plan import Plan
from gcpass._version import __version__

if TYPE_CHECKING:
    from gcpass.fx._capture import fake_mode
    from gcpass.fx._measure import measure
    from gcpass.fx._plan_call import frontier, plan
    from gcpass.fx._region import region

__all__ = [
    "CaptureError",
    "GcpassError",
    "InfeasibleBudget",
    "OptionError",
    "Plan",
    "__version__",
    "fake_mode",
    "frontier",
    "measure",
    "plan",
    "policies",
    "region",
]

_LAZY = {
    "fake_mode": "gcpass.fx._capture",
    "measure": "gcpass.fx._measure",
    "frontier": "gcpass.fx._plan_call",
    "plan": "gcpass.fx._plan_call",
    "region": "gcpass.fx._region",
}


def __getattr__(name: str) -> Any:
    """Import the torch side of the package only when it is asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gcpass' has no attribute {name!r}")

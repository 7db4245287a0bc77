"""torch's own partitioner at its best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gcpass.fx._plan_call import compare


def best_torch_policy(
    fn: Any, args: Any, budgets: Sequence[float], *, codegen: str, hardware: str = "auto"
) -> str:
    """The policy of torch's partitioner, of some budgets, whose predicted peak is smallest."""
    policies = [f"torch:{budget:g}" for budget in budgets]
    found = compare(fn, args, None, hardware=hardware, codegen=codegen, points=2, policies=policies)
    return min(found.others, key=lambda plan: plan.predicted_peak_bytes).policy

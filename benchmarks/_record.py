"""What records of benchmarks say about where they were made, and about a plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from benchmarks.models import SEED
from gcpass import Plan
from gcpass.fx._devices import machine


def where() -> dict[str, Any]:
    """Machine, versions and seed."""
    date = datetime.now(timezone.utc).isoformat(timespec="minutes")
    return {"date": date, **machine(), "seed": SEED}


def plan_numbers(plans: Sequence[Plan]) -> dict[str, Any]:
    """What a step's plan promises; nothing if no single plan was made."""
    if len(plans) != 1:
        return {}
    (plan,) = plans
    return {
        "budget_bytes": plan.budget_bytes,
        "predicted_bytes": plan.predicted_peak_bytes,
        "recompute_ratio": plan.recompute_ratio,
        "predicted_seconds": plan.step_seconds,
        "hardware": plan.hardware,
        "notes": list(plan.notes),
    }

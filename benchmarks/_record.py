"""What records of benchmarks say about where they were made, and about a plan."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import torch

import gcpass
from benchmarks.models import SEED
from gcpass import Plan
from gcpass.fx._devices import cpu_model


def where() -> dict[str, Any]:
    """Machine, versions and seed."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else cpu_model(),
        "torch": torch.__version__,
        "gcpass": gcpass.__version__,
        "seed": SEED,
    }


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

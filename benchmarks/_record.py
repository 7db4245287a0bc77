"""What every record of a benchmark says about where it was made."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from typing import Any

import torch

import gcpass
from benchmarks.models import SEED


def where() -> dict[str, Any]:
    """Machine, versions and seed."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else _cpu_name(),
        "torch": torch.__version__,
        "gcpass": gcpass.__version__,
        "seed": SEED,
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

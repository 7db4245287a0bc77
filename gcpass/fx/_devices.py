"""Which device a graph is for, what it is called, and where what was measured on it is kept."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gcpass._version import __version__


def device_of(values: Iterable[Any]) -> torch.device:
    """The accelerator that the first tensor on one is on; the CPU if there is none."""
    devices = (v.device for v in values if isinstance(v, torch.Tensor))
    return next((d for d in devices if d.type not in ("cpu", "meta")), torch.device("cpu"))


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """What the device calls itself; the kind alone where it is not in this machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cuda"
    if device.type == "cpu":
        return f"{cpu_model()}, {torch.get_num_threads()} threads"
    return device.type


def cpu_model() -> str:
    """The processor's model."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        model = found[1] if found else model
    return model.strip()


def machine() -> dict[str, Any]:
    """The machine and what runs on it, for records."""
    cuda = torch.cuda.is_available()
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else cpu_model(),
        "torch": torch.__version__,
        "gcpass": __version__,
    }


def commit() -> str | None:
    """The commit of the checkout that this package runs from; None for an installed one."""
    git, checkout = shutil.which("git"), Path(__file__).resolve().parents[2]
    if git is None or not (checkout / ".git").exists():
        return None  # an environment inside a checkout of something else has that one's commit
    done = subprocess.run(
        [git, "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def cache_directory() -> Path:
    """Where gcpass keeps what it measured: ``GCPASS_CACHE``, or the user's cache directory."""
    given = os.environ.get("GCPASS_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gcpass"


def calibrated_path(device: torch.device) -> Path:
    """Where the profile of a device is kept that ``gcpass calibrate`` measured."""
    slug = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
    return cache_directory() / "hardware" / f"{slug}.json"

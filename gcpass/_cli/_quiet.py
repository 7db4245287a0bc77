"""Keep torch's profiler quiet: it says on standard error when it starts and stops."""

from __future__ import annotations

import os


def quiet_profiler() -> None:
    """To be called before torch is first imported, for that is when it reads these."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

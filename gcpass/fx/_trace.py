"""The plan in torch's structured trace (``TORCH_TRACE``), where tlparse shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from gcpass._plan import Plan
from gcpass.fx import _compat


def trace_plan(make: Callable[[], Plan]) -> None:
    """Write a plan as two artifacts: its summary, and its JSON without rows and curves.

    The JSON can be followed (the option ``plan``).

    Args:
        make: returns the plan; called only if a trace is written.
    """
    plan = cache(make)

    def text() -> str:
        brief = replace(plan(), timeline=None, unconstrained=None, frontier=(), _rows=())
        return json.dumps(json.loads(brief.to_json()), indent=1)

    _compat.trace_artifact("gcpass_plan_summary", "string", lambda: plan().summary())
    _compat.trace_artifact("gcpass_plan", "json", text)

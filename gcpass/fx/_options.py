"""The backend's options: read, checked and named before anything is compiled."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gcpass._budget import NO_BUDGET, Budget, parse_budget
from gcpass._errors import OptionError, did_you_mean
from gcpass._plan import Plan
from gcpass._planning import Request
from gcpass._report import check_writable
from gcpass._units import format_bytes, parse_bytes
from gcpass.fx import _compat, _compat_inductor
from gcpass.fx._devices import device_of
from gcpass.fx._prices import check_hardware
from gcpass.policies import PolicyLike, find_policy, read_rules

CODEGENS = ("inductor", "eager")
_MARGIN = 0.02  # of a CUDA device's free memory, for the allocator's rounding and fragments
_OWN = (
    "memory_budget",
    "reserve",
    "policy",
    "rules",
    "hardware",
    "solver",
    "on_infeasible",
    "codegen",
    "report",
    "plan",
    "strict",
)


@dataclass(frozen=True)
class Options:
    """Checked options of one compilation.

    Attributes:
        request: what the planner is asked for.
        codegen: ``"inductor"`` or ``"eager"``.
        hardware: the cost model.
        reserve_bytes: bytes that ``memory_budget="auto"`` leaves free; None for the default.
        report: ``"text"`` (to standard error), a file's path (a page if it ends in ``.html``, or
            else JSON), or None.
        plan: a stored plan to follow, or None.
        strict: whether a graph that cannot be planned is an error.
        inductor: options passed on to Inductor.
    """

    request: Request = field(default_factory=Request)
    codegen: str = "inductor"
    hardware: str = "auto"
    reserve_bytes: int | None = None
    report: str | None = None
    plan: Plan | None = None
    strict: bool = False
    inductor: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_bounded(self) -> bool:
        """Whether the optimiser decides within a budget, and no policy or stored plan does."""
        policy = self.request.policy
        chooses = (policy is None or not policy.fixed) and self.plan is None
        return chooses and self.request.budget != NO_BUDGET

    @property
    def shared_key(self) -> str:
        """Equal where graphs share one budget: where all that was asked for is equal."""
        asked, inductor = self.request.fingerprint, sorted(self.inductor.items())
        return repr((asked, self.codegen, self.hardware, self.reserve_bytes, self.strict, inductor))


def read_options(options: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Check the options of ``torch.compile(..., options=...)``.

    Args:
        options: as the user gave them; what gcpass does not know goes to Inductor.
        mode: ``torch.compile``'s mode, which stands for Inductor options.

    Returns:
        The checked options; environment variables fill in what is not given.

    Raises:
        OptionError: a value cannot be used, or a name is nobody's.
    """
    given = dict(options or {})
    own = {name: given.pop(name) for name in _OWN if name in given}
    _check_passed_on(given)
    plan = _read_plan(own.get("plan"))
    if plan is not None and own.get("rules"):
        raise OptionError(
            f"rules={own['rules']!r} and a plan: a stored plan decides everything; give one of the "
            "two"
        )
    budget = (
        parse_budget(own["memory_budget"])
        if "memory_budget" in own
        else parse_budget(os.environ.get("GCPASS_BUDGET") or None, where="GCPASS_BUDGET")
    )
    return Options(
        request=make_request(
            budget,
            own.get("policy"),
            own.get("solver", "auto"),
            own.get("on_infeasible", "error"),
            own.get("rules"),
        ),
        hardware=check_hardware(own.get("hardware", "auto")),
        codegen=check_codegen(own.get("codegen", "inductor")),
        reserve_bytes=_read_reserve(own.get("reserve")),
        report=_read_report(own.get("report", os.environ.get("GCPASS_REPORT"))),
        plan=plan,
        strict=_read_strict(own.get("strict", False)),
        inductor={**(_compat_inductor.inductor_options(mode) if mode else {}), **given},
    )


def make_request(
    budget: object,
    policy: PolicyLike | None,
    solver: str,
    on_infeasible: str,
    rules: object = None,
) -> Request:
    """A checked request."""
    return Request(
        budget=parse_budget(budget),
        policy=find_policy(policy),
        rules=read_rules(rules),
        solver=solver,
        on_infeasible=on_infeasible,
    )


def check_codegen(codegen: object) -> str:
    if codegen not in CODEGENS:
        raise OptionError(
            f"codegen={codegen!r} is not known; {did_you_mean(str(codegen), CODEGENS)}"
        )
    return str(codegen)


def _check_passed_on(given: Mapping[str, Any]) -> None:
    known = _compat_inductor.inductor_options() if given else {}
    for name in given:
        if name.replace("-", "_") not in known:
            raise OptionError(
                f"options[{name!r}] is neither a gcpass nor an Inductor option; "
                f"{_nearest_option(name, known)}"
            )


def _nearest_option(name: str, inductor: Mapping[str, Any]) -> str:
    nearest = did_you_mean(name, _OWN)
    if nearest.startswith("known"):
        other = did_you_mean(name, inductor)
        return other if not other.startswith("known") else nearest
    return nearest


def _read_reserve(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return 0 if value.strip() == "0" else parse_bytes(value, where="reserve")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"reserve={value!r} must be a size such as '2GiB' or a number of bytes")
    return value


def _read_report(value: object) -> str | None:
    if value in (None, False, "", "0"):
        return None
    if value in (True, "1", "text"):
        return "text"
    if isinstance(value, (str, Path)):
        check_writable(Path(value), f"report={str(value)!r}")
        return str(value)
    raise OptionError(f"report={value!r} must be True, 'text' or the path of a .json or .html file")


def _read_plan(value: object) -> Plan | None:
    if value is None or isinstance(value, Plan):
        return value
    if isinstance(value, (str, Path)):
        text = str(value)
        if text.lstrip().startswith("{"):
            return Plan.from_json(text)
        try:
            return Plan.from_json(Path(text).read_text())
        except OSError as error:
            raise OptionError(f"plan={text!r} cannot be read: {error.strerror}") from error
    raise OptionError(f"plan={value!r} must be a gcpass.Plan, its JSON text, or a file's path")


def _read_strict(value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"strict={value!r} must be True or False")
    return value


# -- memory_budget="auto" -----------------------------------------------------------------------


def resolve_auto(options: Options, inputs: Sequence[Any]) -> Budget:
    """What the device has free now, less the reserve, as a budget in bytes.

    Raises:
        OptionError: nothing is left.
    """
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    device = device_of(tensors)
    free = _free_nbytes(device)
    reserve = options.reserve_bytes
    if reserve is None:
        reserve = _default_reserve(tensors)
        reserve += int(_MARGIN * free) if device.type == "cuda" else 0
    left = free - reserve
    if left <= 0:
        raise OptionError(
            f"memory_budget='auto': {device} has {format_bytes(free)} free, and the reserve of "
            f"{format_bytes(reserve)} takes it all; give a smaller reserve or free memory first"
        )
    return Budget(nbytes=left // 2**20 * 2**20 or left)


def _free_nbytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + unused
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _default_reserve(tensors: Sequence[torch.Tensor]) -> int:
    """Two fp32 copies of the trainable parameters, unless some optimizer has its state already.

    Adam makes its state after the first backward: a classic way to run out of memory on step 2.
    """
    if any(isinstance(o, torch.optim.Optimizer) and o.state for o in gc.get_objects()):
        return 0
    trainable = [t for t in tensors if isinstance(t, torch.nn.Parameter) and t.requires_grad]
    return 2 * 4 * sum(_compat.hint(t.numel()) for t in trainable)

"""What a device can do: the figures that price an op.

A profile is a JSON file. gcpass brings one for each of a few devices (`gcpass/profiles/`, from data
sheets), and `gcpass calibrate` measures one on a device of yours. The two have the same form:

    flops_per_second      peak matmul rate by data type
    bytes_per_second      peak memory bandwidth
    attained              the part of those peaks that kernels reach: ``matmul``, ``convolution``,
                          ``attention`` (of the matmul rate) and ``bytes`` (of the bandwidth)
    elements_per_second   of pointwise work that arithmetic bounds: ``transcendental`` functions,
                          ``random`` numbers; where known, ``fused_random``: those that Inductor
                          draws in a loop, and ``mask``: booleans that a loop writes and another
                          reads, where that takes longer than their bytes do
    launch_seconds        the least that a kernel takes
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gcpass._errors import OptionError, did_you_mean

FORMAT_VERSION = 1
KINDS = ("matmul", "convolution", "attention")
_DIRECTORY = Path(__file__).with_name("profiles")
_SLOWER = {  # where a profile has no rate of its own for a data type
    "tf32": "float32",
    "bfloat16": "float32",
    "float16": "bfloat16",
    "float8": "float16",
    "int8": "float8",
    "float64": "float32",
}
_LESS_EXACT = {"fused_random": "random"}  # where a profile has no rate of its own


@dataclass(frozen=True)
class Hardware:
    """A device's profile.

    Attributes:
        name: how it is selected and recorded.
        device: torch's name of the kind of device: ``"cpu"`` or ``"cuda"``.
        source: where the figures are from.
        flops_per_second: peak matmul rate by data type.
        bytes_per_second: peak memory bandwidth.
        attained: the part of the peaks that kernels reach, by kind of work.
        elements_per_second: of pointwise work that arithmetic bounds, by kind.
        launch_seconds: the least that a kernel takes.
        memory_bytes: the device's memory; 0 if it is the machine's.
        matches: patterns of the device names that it stands for.
    """

    name: str
    device: str
    source: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    attained: Mapping[str, float]
    elements_per_second: Mapping[str, float]
    launch_seconds: float
    memory_bytes: int = 0
    matches: tuple[str, ...] = ()

    def flop_rate(self, kind: str, dtype: str) -> float:
        """Reachable FLOP/s of a kind of work (`KINDS`) in a data type."""
        while dtype not in self.flops_per_second and dtype in _SLOWER:
            dtype = _SLOWER[dtype]
        peak = self.flops_per_second.get(dtype, self.flops_per_second["float32"])
        return peak * self.attained[kind]

    @property
    def byte_rate(self) -> float:
        """Reachable bytes per second."""
        return self.bytes_per_second * self.attained["bytes"]

    def element_rate(self, kind: str) -> float:
        """Elements per second of a kind of arithmetic."""
        rates = self.elements_per_second
        return rates[kind if kind in rates else _LESS_EXACT.get(kind, kind)]

    @property
    def fingerprint(self) -> str:
        """Changes with any figure."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The profile as the text of a file that `read_profile` reads."""
        data = {"format": FORMAT_VERSION, **dataclasses.asdict(self)}
        return json.dumps(data, indent=2) + "\n"


def read_profile(path: Path) -> Hardware:
    """Read a profile.

    Raises:
        OptionError: the file cannot be read, is of a newer format, or a figure is missing or not
            positive.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = data.pop("format")
    except OSError as error:
        raise OptionError(f"hardware profile {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"{path} is not a hardware profile: {error}") from error
    if version != FORMAT_VERSION:
        raise OptionError(
            f"hardware profile {path} has format {version!r}; this gcpass reads {FORMAT_VERSION}"
        )
    fields = {field.name: field for field in dataclasses.fields(Hardware)}
    missing = [n for n, f in fields.items() if n not in data and f.default is dataclasses.MISSING]
    unknown = [name for name in data if name not in fields]
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r}"
        raise OptionError(f"hardware profile {path} {what}")
    data["matches"] = tuple(data.get("matches", ()))
    hardware = Hardware(**data)
    _check_figures(hardware, path)
    return hardware


def _check_figures(hardware: Hardware, path: Path) -> None:
    needed: dict[str, Any] = {
        "bytes_per_second": hardware.bytes_per_second,
        "launch_seconds": hardware.launch_seconds,
        "flops_per_second['float32']": _item(hardware.flops_per_second, "float32"),
        **{f"attained[{k!r}]": _item(hardware.attained, k) for k in (*KINDS, "bytes")},
        **{
            f"elements_per_second[{k!r}]": _item(hardware.elements_per_second, k)
            for k in ("transcendental", "random")
        },
        **{
            f"elements_per_second[{k!r}]": rate
            for k in ("fused_random", "mask")
            if (rate := _item(hardware.elements_per_second, k)) is not None
        },
    }
    for name, value in needed.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise OptionError(
                f"hardware profile {path}: {name} is {value!r}, and must be a positive number"
            )


def _item(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


@cache
def known_profiles() -> dict[str, Hardware]:
    """The profiles that gcpass brings, by name."""
    found = (read_profile(path) for path in sorted(_DIRECTORY.glob("*.json")))
    return {hardware.name: hardware for hardware in found}


def profile_named(name: str) -> Hardware:
    """The profile called ``name``, or the one in the file ``name``.

    Raises:
        OptionError: there is none.
    """
    if name.endswith(".json"):
        return read_profile(Path(name))
    known = known_profiles()
    if name not in known:
        others = ("auto", "measured", "reference")
        raise OptionError(
            f"hardware={name!r} is not known; {did_you_mean(name, [*known, *others])}; "
            "or give the path of a profile that gcpass calibrate wrote"
        )
    return known[name]


def profile_for(device: str, device_name: str) -> Hardware | None:
    """The profile that gcpass brings for a device called ``device_name``; None if it has none."""
    for hardware in known_profiles().values():
        if hardware.device == device and any(
            re.search(pattern, device_name, re.IGNORECASE) for pattern in hardware.matches
        ):
            return hardware
    return None

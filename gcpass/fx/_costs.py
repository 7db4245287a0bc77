"""Seconds of one op, from its shapes: what the planner minimises.

Two models, one interface (`Prices`); a third (`gcpass.fx._timed`) runs the ops.

The **reference** model prices every op on a fixed device, so that plans stay comparable between
machines: F = 989e12 x 0.6 FLOP/s and W = 3.35e12 x 0.8 B/s (the data-sheet figures of an H100 SXM
at bf16 without sparsity, and of its HBM3, times what kernels commonly reach).

    views and getitem                                    0
    ops torch's partitioner lists as recomputable        0.5 x output bytes / W
      and that have no flop formula
    ops of unknown cost (custom ops, user kernels)       UNKNOWN x (input + output bytes) / W
    every other op                                       max(flops / F, (input + output bytes) / W)

The **roofline** of a device's profile (`gcpass._hardware`): F by kind of work and data type, A for
pointwise work that arithmetic bounds, W, and L for a kernel's launch.

    views and getitem                                    0
    an op with a kernel of its own                       L + max(flops / F, elements / A, bytes / W)
    a loop that is fused into a kernel                   max(elements / A, bytes / W), where the
                                                         bytes are those that it adds to the kernel
                                                         (`gcpass.fx._traffic`)
    ops of unknown cost                                  UNKNOWN x the bytes
    a value written by one loop and read by another      2 x bytes / W, or elements / A for booleans
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from gcpass._hardware import Hardware
from gcpass.fx import _compat
from gcpass.fx._call import TORCHS_OWN, Call, elements, elements_nbytes
from gcpass.fx._flops import arithmetic, flops, work

UNKNOWN_FACTOR = 10  # a custom op is taken to do this much more than read and write its operands

_FLOAT8 = "float8"


class Prices(Protocol):
    """What ops cost on a device.

    Attributes:
        name: of the model, for the record.
        device: torch's name of the kind of device that the model is of; empty for the reference.
        fingerprint: changes with anything that changes a price.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def seconds(self, call: Call, added_nbytes: int | None) -> float:
        """Time of one run of a call that is no view; ``added_nbytes`` to its kernel if it fuses."""
        ...

    def traffic_seconds(self, value: object) -> float:
        """Time for one loop to write a (fake) value to memory, and for another to read it."""
        ...

    def finish(self) -> tuple[str, ...]:
        """Called when a graph has been priced; what a user should know of that, in sentences."""
        ...


@dataclass(frozen=True)
class Reference:
    """The fixed device."""

    name: str = "reference"
    device: str = ""
    fingerprint: str = "reference"
    flop_rate: float = 989e12 * 0.6
    byte_rate: float = 3.35e12 * 0.8

    def seconds(self, call: Call, added_nbytes: int | None) -> float:
        count = flops(call)
        if count is None and _compat.is_default_recomputable(call.node.target):
            return 0.5 * elements_nbytes(call.value) / self.byte_rate
        traffic = _operands_nbytes(call, count) / self.byte_rate
        return max((count or 0) / self.flop_rate, traffic)

    def traffic_seconds(self, value: object) -> float:
        return 2 * elements_nbytes(value) / self.byte_rate

    def finish(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Roofline:
    """The device of a profile."""

    hardware: Hardware

    @property
    def name(self) -> str:
        return self.hardware.name

    @property
    def device(self) -> str:
        return self.hardware.device

    @property
    def fingerprint(self) -> str:
        return self.hardware.fingerprint

    def seconds(self, call: Call, added_nbytes: int | None) -> float:
        count, hardware = flops(call), self.hardware
        alone = added_nbytes is None
        nbytes = _operands_nbytes(call, count) if alone else added_nbytes
        times = [nbytes / hardware.byte_rate]
        if count is not None:
            times.append(count / hardware.flop_rate(work(call), _dtype(call, hardware)))
        kind = arithmetic(call)
        if kind is not None:
            larger = max(elements(call.value), *map(elements, call.tensors), 0)
            times.append(larger / hardware.element_rate(kind))
        return max(times) + (hardware.launch_seconds if alone else 0.0)

    def traffic_seconds(self, value: object) -> float:
        is_mask = isinstance(value, torch.Tensor) and value.dtype is torch.bool
        if is_mask and "mask" in self.hardware.elements_per_second:
            return elements(value) / self.hardware.element_rate("mask")
        return 2 * elements_nbytes(value) / self.hardware.byte_rate

    def finish(self) -> tuple[str, ...]:
        return ()


def _operands_nbytes(call: Call, count: int | None) -> int:
    """Bytes in and out, times `UNKNOWN_FACTOR` for an op that nobody knows."""
    nbytes = elements_nbytes(call.value)
    nbytes += sum(map(elements_nbytes, (*call.arguments, *call.keywords.values())))
    known = count is not None or getattr(call.node.target, "namespace", "") in TORCHS_OWN
    return nbytes if known else UNKNOWN_FACTOR * nbytes


def _dtype(call: Call, hardware: Hardware) -> str:
    """The profile's name of the data type that a call multiplies in."""
    dtype = next((t.dtype for t in call.tensors), torch.float32)
    name = str(dtype).removeprefix("torch.")
    if name.startswith(_FLOAT8):
        return _FLOAT8
    if name == "float32" and hardware.device == "cuda" and _multiplies_in_tf32(call):
        return "tf32"
    return name


def _multiplies_in_tf32(call: Call) -> bool:
    if work(call) == "convolution":
        return torch.backends.cudnn.allow_tf32
    return torch.get_float32_matmul_precision() != "highest"

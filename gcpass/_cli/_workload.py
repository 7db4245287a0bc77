"""From options to a workload, a way of training, a device, and what traces for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gcpass._cli._files import load
from gcpass._errors import OptionError
from gcpass._hardware import profile_named
from gcpass._training import Device, Training, default_reserve
from gcpass._units import format_bytes, parse_bytes
from gcpass._workload import Workload, parse_dtype, parse_lora

if TYPE_CHECKING:
    from gcpass.fx._workload import Tracer

_ACCELERATOR = "h100"  # what is planned for where no accelerator is, and none is named
_LEAST_MEMORY = 2**20


def is_named(target: str) -> bool:
    """Whether gcpass knows by itself how to build the model."""
    return target.startswith(("hf:", "zoo:"))


@dataclass(frozen=True)
class Asked:
    """What the options of a command come to."""

    workload: Workload
    training: Training
    device: Device
    hardware: str


def read(
    target: str,
    *,
    config: Sequence[str] | None,
    batch: int | None,
    seq: int | None,
    dtype: str | None,
    lora: str | None,
    qlora: bool,
    sequence_parallel: int,
    optimizer: str,
    master_weights: bool,
    zero: int,
    world_size: int,
    device_memory: str | None,
    reserve: str | None,
    hardware: str,
) -> Asked:
    """Check the options of a training step on a device.

    Raises:
        OptionError: one cannot be used, or does not go with another.
    """
    for name, value in (("batch", batch), ("seq", seq), ("sequence-parallel", sequence_parallel)):
        if value is not None and value < 1:
            raise OptionError(f"--{name} {value} must be at least 1")
    if not target.startswith("hf:"):
        given = {
            "--config": config,
            "--batch": batch,
            "--seq": seq,
            "--dtype": dtype,
            "--lora": lora,
            "--qlora": qlora,
            "--sequence-parallel": sequence_parallel > 1,
        }
        for name, value in given.items():
            if value:
                raise OptionError(f"{name} is for models that gcpass builds (hf:), not {target}")
    workload = Workload(
        target=target,
        config=tuple(config or ()),
        batch=batch,
        seq=seq,
        dtype=parse_dtype(dtype or "bf16"),
        lora=parse_lora(lora),
        qlora=qlora,
        sequence_parallel=sequence_parallel,
    )
    training = Training(optimizer, master_weights, zero, world_size)
    hardware = _accelerator() if hardware == "auto" else hardware  # imports torch: seconds
    return Asked(workload, training, _device(device_memory, reserve, hardware), hardware)


def _accelerator() -> str:
    from gcpass.fx._prices import accelerator_profile

    return accelerator_profile() or _ACCELERATOR


def _device(memory: str | None, reserve: str | None, hardware: str) -> Device:
    if memory is not None:
        nbytes = parse_bytes(memory, where="--device-memory")
        if nbytes < _LEAST_MEMORY:
            raise OptionError(
                f"--device-memory {memory} means {nbytes} bytes; write a unit, such as "
                f"{memory.strip()}GiB"
            )
    else:
        known = hardware not in ("auto", "measured", "reference")
        nbytes = profile_named(hardware).memory_bytes if known else 0
        if not nbytes:
            raise OptionError(
                f"hardware={hardware!r} does not say how much memory the device has: give "
                "--device-memory, such as 80GiB"
            )
    left = default_reserve(nbytes)
    if reserve is not None:
        left = 0 if reserve.strip() == "0" else parse_bytes(reserve, where="--reserve")
    if left >= nbytes:
        raise OptionError(
            f"--reserve of {format_bytes(left)} takes all {format_bytes(nbytes)} of the device"
        )
    return Device(nbytes, left)


def tracer(asked: Asked, codegen: str, *, fake: bool) -> Tracer:
    """What traces workloads for the device that was asked for.

    Raises:
        OptionError: the hardware or the codegen is not known.
    """
    from gcpass.fx._options import check_codegen
    from gcpass.fx._workload import Tracer

    def build(target: str) -> tuple[Callable[..., Any], Sequence[Any]]:
        return load(target, fake=fake or target.startswith("zoo:"))

    return Tracer(asked.hardware, check_codegen(codegen), build)

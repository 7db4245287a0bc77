"""``hardware="measured"``: every distinct op run once on the device, and its time kept.

Loops that Inductor fuses have no time of their own: they are priced by their traffic, as in the
roofline. So are ops that cannot be run alone (they mutate, communicate, or refuse made-up inputs);
the plan lists them. Times are kept in one file for each device and versions of torch and gcpass
(`gcpass.fx._devices.cache_directory`), so that a graph is timed once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gcpass._version import __version__
from gcpass.fx import _compat
from gcpass.fx._call import Call, block_nbytes, shape
from gcpass.fx._costs import Prices
from gcpass.fx._devices import cache_directory, device_name, synchronize

_RUNS, _ENOUGH_SECONDS = 5, 0.05  # runs of one op, and the time after which fewer do


class Timed:
    """Prices ops by running them.

    Args:
        model: prices what cannot be run alone.
        device: where to run.
    """

    def __init__(self, model: Prices, device: torch.device) -> None:
        self._model, self._device = model, device
        versions = {"torch": torch.__version__, "gcpass": __version__}
        self._record = {"device": device_name(device), "versions": versions}
        digest = hashlib.sha256(json.dumps(self._record).encode()).hexdigest()[:16]
        self._path = cache_directory() / "ops" / f"{digest}.json"
        self._times = _read(self._path)
        self._new: dict[str, float] = {}
        self._refused: dict[str, tuple[str, str]] = {}  # key: the operator, and why not

    @property
    def name(self) -> str:
        return f"measured on {device_name(self._device)}"

    @property
    def device(self) -> str:
        return self._device.type

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self._model.fingerprint}"

    def seconds(self, call: Call, added_nbytes: int | None) -> float:
        if added_nbytes is not None:
            return self._model.seconds(call, added_nbytes)
        key = _key(call)
        if not any(key in known for known in (self._times, self._new, self._refused)):
            obstacle = self._time(call, key)
            if obstacle:
                self._refused[key] = str(call.node.target), obstacle
        known = self._times.get(key, self._new.get(key))
        return self._model.seconds(call, None) if known is None else known

    def traffic_seconds(self, value: object) -> float:
        return self._model.traffic_seconds(value)

    def finish(self) -> tuple[str, ...]:
        """Write new times to the file, and say what could not be timed."""
        self._write()
        if not self._refused:
            return ()
        reasons = sorted(dict(reversed(self._refused.values())).items())  # the first of each
        listed = "; ".join(f"{name} ({why})" for name, why in reasons)
        return (f"priced by the model of {self._model.name}, not by running them: {listed}",)

    def _time(self, call: Call, key: str) -> str | None:
        """Run the call and keep its time; or why it cannot be run."""
        if call.node.is_impure(impure_random=False) or _mutates(call.node.target):
            return "has an effect"
        if "c10d" in str(call.node.target):
            return "communicates"
        try:
            with _compat.outside_modes(), torch.no_grad():
                arguments = _compat.tree_map(_real, call.arguments)
                keywords = _compat.tree_map(_real, call.keywords)
                times = all_seconds(
                    lambda: call.node.target(*arguments, **keywords),  # type: ignore[operator]
                    self._device,
                    _RUNS,
                )
        except Exception as error:  # made-up inputs can break an op in any way
            return f"{type(error).__name__} on made-up inputs"
        self._new[key] = statistics.median(times)
        return None

    def _write(self) -> None:
        """Add the new times to the file; a cache that cannot be written is only slower."""
        if not self._new:
            return
        self._times = {**_read(self._path), **self._times, **self._new}
        self._new = {}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "w") as file:
                json.dump({**self._record, "ops": self._times}, file)
            os.replace(name, self._path)


def all_seconds(run: Callable[[], Any], device: torch.device, runs: int) -> list[float]:
    """Times of a call, the device's work included, after one that is not timed."""
    times: list[float] = []
    run()
    while len(times) < runs and sum(times) < _ENOUGH_SECONDS * runs:
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


def _real(value: Any) -> Any:
    """A tensor like a fake one: floats around zero, integers zero (a valid index of anything)."""
    if isinstance(value, torch.Tensor):
        strides = [_compat.hint(s) for s in value.stride()]
        count = block_nbytes(value) // value.dtype.itemsize
        made = torch.zeros(count, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point and value.dtype.itemsize > 1:
            made.normal_()
        return made.as_strided(shape(value), strides)
    if isinstance(value, torch.SymInt):
        return _compat.hint(value)
    return value


def _mutates(target: object) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.is_mutable


def _key(call: Call) -> str:
    """Everything that a call's time depends on."""
    return json.dumps(
        [str(call.node.target), _describe(call.arguments), _describe(call.keywords)], default=str
    )


def _describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strides = [_compat.hint(s) for s in value.stride()]
        return [list(shape(value)), strides, str(value.dtype)]
    if isinstance(value, (list, tuple)):
        return [_describe(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _describe(v) for k, v in value.items()}
    if isinstance(value, torch.SymInt):
        return _compat.hint(value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def _read(path: Path) -> dict[str, float]:
    """Times by key; none if the file is not there or not whole."""
    try:
        times = json.loads(path.read_text())["ops"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(k): float(v) for k, v in times.items()}

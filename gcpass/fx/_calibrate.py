"""``gcpass calibrate``: measure what a device can do."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from gcpass._errors import OptionError
from gcpass._hardware import Hardware
from gcpass.fx._devices import calibrated_path, device_name, synchronize
from gcpass.fx._timed import all_seconds

log = logging.getLogger("gcpass")

_LONG_SECONDS = 0.03  # a matrix product that takes this long says how fast they are
_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
_COPIED = {"cpu": 64 * 2**20, "cuda": 2**30}  # bytes: far more than any cache
_POINTWISE = {"cpu": 2**20, "cuda": 2**26}  # elements: on the CPU, few enough to stay in the cache
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_RUNS, _MATMUL_RUNS = 25, 9
_WARM_SECONDS = 0.5  # of work before anything is timed: clocks rise, thread pools start

STAGES = len(_FLOATS) + 7

Progress = Callable[[str], None]


def find_device(name: str | None) -> torch.device:
    """The device called ``name``; None: CUDA's if there is one, or else the CPU.

    Raises:
        OptionError: it cannot be measured, or is not here.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _SIZES:
        raise OptionError(f"--device {name!r} cannot be measured; give cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"--device {name!r}: torch finds no CUDA device here; give cpu")
    return device


def calibrate(device: torch.device, progress: Progress = lambda stage: None) -> Hardware:
    """Measure a device.

    Args:
        device: ``cpu`` or ``cuda``.
        progress: called with the name of each of `STAGES` stages as it starts.

    Returns:
        The device's profile; its figures are reached, so that ``attained`` is 1 for those that
        they are of, and the part of the matmul rate reached for convolutions and attention.
    """
    kind = "cuda" if device.type == "cuda" else "cpu"
    with torch.no_grad():
        _warm_up(device)
        rates = dict(_matmul_rates(device, kind, progress))
        half = torch.bfloat16 if kind == "cuda" else torch.float32
        base = rates[str(half).removeprefix("torch.")]
        progress("copy bandwidth")
        bandwidth = _bytes_per_second(device, _COPIED[kind])
        progress("a convolution")
        convolution = _convolution_rate(device, half)
        progress("attention")
        attention = _attention_rate(device, half)
        progress("pointwise functions")
        transcendental = _transcendental_rate(device, _POINTWISE[kind])
        progress("random numbers")
        random = _random_rate(device, _POINTWISE[kind])
        progress("what Inductor's loops take")
        loops = _loop_rates(device, _POINTWISE[kind], bandwidth)
        progress("a kernel's launch")
        launch = _launch_seconds(device)
    return Hardware(
        name=device_name(device),
        device=kind,
        source=f"gcpass calibrate, torch {torch.__version__}",
        flops_per_second=rates,
        bytes_per_second=bandwidth,
        attained={
            "matmul": 1.0,
            "convolution": convolution / base,
            "attention": attention / base,
            "bytes": 1.0,
        },
        elements_per_second={"transcendental": transcendental, "random": random, **loops},
        launch_seconds=launch,
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if kind == "cuda" else 0,
    )


def _best_seconds(run: Callable[[], object], device: torch.device, runs: int = _RUNS) -> float:
    """The shortest time of a call: what others do on the machine only makes it longer."""
    return min(all_seconds(run, device, runs))


def _warm_up(device: torch.device) -> None:
    matrix = torch.randn(512, 512, device=device)
    start = time.perf_counter()
    while time.perf_counter() - start < _WARM_SECONDS:
        torch.mm(matrix, matrix)
        synchronize(device)


def _matmul_rates(
    device: torch.device, kind: str, progress: Progress
) -> Iterator[tuple[str, float]]:
    for dtype in _FLOATS:
        name = str(dtype).removeprefix("torch.")
        progress(f"{name} matmul")
        yield name, _matmul_rate(device, dtype, _SIZES[kind])
        if kind == "cuda" and dtype is torch.float32:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high")
            try:
                yield "tf32", _matmul_rate(device, dtype, _SIZES[kind])
            finally:
                torch.set_float32_matmul_precision(before)


def _matmul_rate(device: torch.device, dtype: torch.dtype, sizes: tuple[int, ...]) -> float:
    """FLOP/s of the largest square product, or of the first that takes long."""
    rate = 0.0
    for size in sizes:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = _best_seconds(lambda a=left, b=right: a @ b, device, _MATMUL_RUNS)
        rate = max(rate, 2 * size**3 / seconds)
        if seconds > _LONG_SECONDS:
            break
    return rate


def _bytes_per_second(device: torch.device, nbytes: int) -> float:
    source = torch.zeros(nbytes // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * nbytes / _best_seconds(lambda: target.copy_(source), device)


def _convolution_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a 3 x 3 convolution of 64 channels, channels last."""
    images = torch.randn(4, 64, 112, 112, device=device, dtype=dtype)
    weight = torch.randn(64, 64, 3, 3, device=device, dtype=dtype)
    images, weight = (t.to(memory_format=torch.channels_last) for t in (images, weight))
    seconds = _best_seconds(lambda: F.conv2d(images, weight, padding=1), device)
    return 2 * images.numel() * 64 * 9 / seconds


def _attention_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of attention over 512 positions, 16 heads of 64."""
    query, key, value = (torch.randn(1, 16, 512, 64, device=device, dtype=dtype) for _ in range(3))
    seconds = _best_seconds(lambda: F.scaled_dot_product_attention(query, key, value), device)
    return 4 * 16 * 512 * 512 * 64 / seconds


def _transcendental_rate(device: torch.device, count: int) -> float:
    """Elements per second, the geometric mean of three functions."""
    source = torch.randn(count, device=device)
    target = torch.empty_like(source)
    times = [
        _best_seconds(lambda f=function: f(source, out=target), device)
        for function in (torch.exp, torch.erf, torch.tanh)
    ]
    return count / math.prod(times) ** (1 / len(times))


def _random_rate(device: torch.device, count: int) -> float:
    target = torch.empty(count, device=device)
    return count / _best_seconds(lambda: target.uniform_(), device)


def _loop_rates(device: torch.device, count: int, bytes_per_second: float) -> dict[str, float]:
    """Elements per second that loops compiled by Inductor draw, and write and read as booleans.

    What booleans take is what they add to writing and reading floats; where that is less than
    nothing, their bytes are all that counts. Nothing where Inductor cannot compile here.
    """
    source = torch.randn(count, device=device)
    mask = source > 0

    def seconds(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> float:
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        return _best_seconds(lambda: compiled(*args), device)

    try:
        draw = seconds(torch.rand_like, source)
        written = seconds(lambda x: x > 0, source) - seconds(lambda x: (x > 0).float(), source)
        read = seconds(torch.mul, mask, source) - seconds(torch.mul, mask.float(), source)
    except RuntimeError as error:
        log.warning("gcpass: Inductor's loops are not measured: %s", error)
        return {}
    rates = {"fused_random": count / draw}
    if written + read > 0:
        rates["mask"] = count / (written + read + 2 * count / bytes_per_second)
    return rates


def _launch_seconds(device: torch.device) -> float:
    """The least that one of many small kernels takes."""
    small = torch.zeros(16, device=device)

    def many() -> None:
        for _ in range(200):
            small.add_(1)

    return _best_seconds(many, device) / 200


__all__ = ["STAGES", "calibrate", "calibrated_path", "find_device"]

"""Bytes and seconds: parsing what people write, printing what people read."""

from __future__ import annotations

import re
from fractions import Fraction

from gcpass._errors import OptionError

PICOSECONDS = 10**12  # per second; the solver counts time in whole picoseconds

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str, *, where: str) -> int:
    """Bytes meant by a text such as ``"6GiB"``, ``"300 MB"`` or ``"1048576"``.

    Args:
        text: a number and a unit (KiB/MiB/GiB binary, KB/MB/GB decimal, K/M/G binary).
        where: the option or variable the text came from, for the error.

    Returns:
        A positive number of bytes.

    Raises:
        OptionError: the text is not a size, or is zero.
    """
    match = _SIZE.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS:
        raise OptionError(
            f"{where}={text!r} is not a size; write a number and a unit, such as '6GiB' or '300MiB'"
        )
    nbytes = int(Fraction(match[1]) * _UNITS[unit])
    if nbytes <= 0:
        raise OptionError(f"{where}={text!r} must be more than zero bytes")
    return nbytes


def format_bytes(nbytes: float) -> str:
    """``nbytes`` in the unit a person would choose: ``"1.25 GiB"``, ``"300.0 MiB"``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1023.95 or unit == "GiB":  # 1023.95 would print as 1024.0
            break
        value /= 1024
    if unit == "B":
        return f"{int(value)} B"
    return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """``seconds`` in the unit a person would choose: ``"1.20 s"``, ``"3.4 ms"``, ``"12.0 us"``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"

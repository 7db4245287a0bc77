"""The memory budget as a user writes it."""

from __future__ import annotations

from dataclasses import dataclass

from gcpass._errors import OptionError
from gcpass._units import format_bytes, parse_bytes


@dataclass(frozen=True)
class Budget:
    """A parsed budget; at most one field is set, and none means no bound.

    Attributes:
        nbytes: a number of bytes.
        fraction: a fraction of the unconstrained plan's predicted peak.
        auto: what the device has free, less the reserve.
    """

    nbytes: int | None = None
    fraction: float | None = None
    auto: bool = False

    def __str__(self) -> str:
        if self.nbytes is not None:
            return format_bytes(self.nbytes)
        if self.fraction is not None:
            return f"{self.fraction:g} of the unconstrained peak"
        return "auto" if self.auto else "none"


NO_BUDGET = Budget()


def parse_budget(value: object, *, where: str = "memory_budget") -> Budget:
    """Read a budget.

    Args:
        value: ``"6GiB"``, a whole number of bytes, a float in (0, 1], ``"auto"`` or None.
        where: the option or variable it came from, for the error.

    Returns:
        The budget.

    Raises:
        OptionError: it is none of these, or not positive.
    """
    if value is None or isinstance(value, Budget):
        return value if isinstance(value, Budget) else NO_BUDGET
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("auto", "none"):
            return Budget(auto=text.lower() == "auto")
        if text.replace(".", "", 1).isdigit() and "." in text:
            return _fraction(float(text), value, where)
        return Budget(nbytes=parse_bytes(value, where=where))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(
            f"{where}={value!r} is not a budget; write a size such as '6GiB', a number of bytes, "
            "a fraction in (0, 1], 'auto' or None"
        )
    if isinstance(value, float):
        return _fraction(value, value, where)
    if value <= 0:
        raise OptionError(f"{where}={value!r} must be more than zero bytes")
    return Budget(nbytes=value)


def _fraction(fraction: float, value: object, where: str) -> Budget:
    if not 0 < fraction <= 1:
        raise OptionError(
            f"{where}={value!r} is a fraction, and must be more than 0 and at most 1; "
            "for bytes, write a whole number or a size such as '6GiB'"
        )
    return Budget(fraction=fraction)

"""The option ``hardware``: from what a user writes to what ops cost."""

from __future__ import annotations

import warnings

import torch

from gcpass._errors import OptionError
from gcpass._hardware import Hardware, profile_for, profile_named, read_profile
from gcpass.fx._costs import Prices, Reference, Roofline
from gcpass.fx._devices import calibrated_path, device_name
from gcpass.fx._timed import Timed

_STAND_IN = "h100"  # for accelerators that nobody has a profile of


def check_hardware(hardware: object) -> str:
    """The option, if it can be used on some device.

    Raises:
        OptionError: it is no name of a model or profile, or its file cannot be used.
    """
    if not isinstance(hardware, str):
        raise OptionError(f"hardware={hardware!r} must be a name or the path of a profile")
    if hardware not in ("auto", "measured", "reference"):
        profile_named(hardware)
    return hardware


def find_prices(hardware: str, device: torch.device) -> Prices:
    """What ops cost.

    Args:
        hardware: ``"auto"`` (the device's own profile: calibrated, or else the one that gcpass
            brings), ``"measured"`` (every op run on the device), ``"reference"``, the name of a
            profile, or the path of one.
        device: that the graph is for.

    Returns:
        The prices.

    Raises:
        OptionError: there is no such model or profile, or ops cannot be run on the device.
    """
    if hardware == "reference":
        return Reference()
    if hardware == "auto":
        return Roofline(own_profile(device))
    if hardware == "measured":
        if device.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(
                "hardware='measured' runs ops on the device, and there is no CUDA device here; "
                "name a profile instead, such as hardware='h100'"
            )
        return Timed(Roofline(own_profile(device)), device)
    return Roofline(profile_named(hardware))


def accelerator_profile() -> str | None:
    """The name or path of the profile of this machine's CUDA device; None without a device.

    Training steps that need not run here are priced for it.
    """
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda")
    calibrated = calibrated_path(device)
    return str(calibrated) if calibrated.is_file() else own_profile(device).name


def own_profile(device: torch.device) -> Hardware:
    """The profile of a device: measured here, or brought by gcpass, or a stand-in and a warning."""
    calibrated = calibrated_path(device)
    if calibrated.is_file():
        return read_profile(calibrated)
    if device.type == "cpu":
        return profile_named("cpu")
    name = device_name(device)
    found = profile_for(device.type, name)
    if found is not None:
        return found
    warnings.warn(
        f"gcpass has no profile of {name!r}, and prices its ops as those of an {_STAND_IN}; run "
        "gcpass calibrate on it, or give hardware= the name of the profile that is nearest",
        stacklevel=2,
    )
    return profile_named(_STAND_IN)

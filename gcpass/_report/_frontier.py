"""A picture of a frontier: peak against recomputation, other policies as points beside it."""

from __future__ import annotations

from pathlib import Path

from gcpass._errors import OptionError
from gcpass._frontier import Frontier

GIB = 2**30
MIB = 2**20


def draw_frontier(frontier: Frontier, path: Path, title: str = "") -> None:
    """Draw a frontier into a file; its name says the format.

    Raises:
        OptionError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        raise OptionError(
            "drawing a frontier needs matplotlib: pip install 'gcpass[plot]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    largest = max(plan.predicted_peak_bytes for plan in (*frontier.points, *frontier.others))
    unit, name = (GIB, "GiB") if largest >= 4 * GIB else (MIB, "MiB")
    figure, axes = plt.subplots(figsize=(6.4, 4.2), dpi=150)
    peaks = [plan.predicted_peak_bytes / unit for plan in frontier.points]
    ratios = [100 * plan.recompute_ratio for plan in frontier.points]
    axes.plot(ratios, peaks, "o-", ms=3, label="gcpass")
    proven = [100 * plan.lower_bound_ratio for plan in frontier.points]
    axes.plot(proven, peaks, ":", color="0.5", label="proven lower bound")
    for plan in frontier.others:
        at = 100 * plan.recompute_ratio, plan.predicted_peak_bytes / unit
        axes.plot(*at, "s", color="tab:orange", ms=4)
        axes.annotate(plan.policy, at, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("recomputation, % of the forward")
    axes.set_ylabel(f"predicted peak, {name}")
    axes.set_ylim(0, None)
    axes.set_title(title)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"--plot {path} cannot be written: {error}") from error
    finally:
        plt.close(figure)

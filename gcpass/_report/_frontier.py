"""A picture of a frontier: peak against recomputation, other policies as points beside it."""

from __future__ import annotations

from pathlib import Path

from gcpass._frontier import Frontier
from gcpass._plan import Plan
from gcpass._report._draw import pyplot, save

_WIDE = 300  # % of recomputation from which on the axis is logarithmic
GIB = 2**30
MIB = 2**20


def draw_frontier(frontier: Frontier, path: Path, title: str = "") -> None:
    """Draw a frontier into a file; its name says the format.

    Raises:
        OptionError: matplotlib is not installed, or the file cannot be written.
    """
    plt = pyplot("a frontier")
    from matplotlib.ticker import ScalarFormatter

    largest = max(plan.predicted_peak_bytes for plan in (*frontier.points, *frontier.others))
    unit, name = (GIB, "GiB") if largest >= 4 * GIB else (MIB, "MiB")
    figure, axes = plt.subplots(figsize=(6.4, 4.2), dpi=150)

    def place(plan: Plan) -> tuple[float, float]:
        return 100 * plan.recompute_ratio, plan.predicted_peak_bytes / unit

    once = [plan for plan in frontier.points if not plan.stops]
    axes.plot(*zip(*map(place, once), strict=True), "o-", color="tab:blue", ms=3, label="gcpass")
    proven = [(100 * plan.lower_bound_ratio, place(plan)[1]) for plan in once]
    axes.plot(*zip(*proven, strict=True), ":", color="0.5", label="proven lower bound")
    if more := [plan for plan in frontier.points if plan.stops]:
        line = zip(*map(place, [*once[-1:], *more]), strict=True)
        label = "gcpass, recomputing more than once"
        axes.plot(*line, "o--", color="tab:blue", mfc="white", ms=3, label=label)
    if max(place(plan)[0] for plan in frontier.points) > _WIDE:
        axes.set_xscale("symlog", linthresh=100)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    for plan in frontier.others:
        at = place(plan)
        axes.plot(*at, "s", color="tab:orange", ms=4)
        axes.annotate(plan.policy, at, xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("recomputation, % of the forward")
    axes.set_ylabel(f"predicted peak, {name}")
    axes.set_ylim(0, None)
    axes.set_title(title)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)

"""Measured peak against requested budget, torch and gcpass, drawn from a record of `measured.py`.

    python -m benchmarks.measured --codegen inductor --models resnet --steps 1 --no-torch \\
        --fractions 0.9 0.8 0.7 0.6 0.5 0.4 --torch-budgets 1 0.8 0.6 0.4 0.2 0 --out sweep.json
    python -m benchmarks.plot sweep.json resnet docs/budget.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("model")
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.record.read_text())["models"][options.model]["rows"]
    draw(rows, options.model, options.picture)


def draw(rows: dict, model: str, picture: Path) -> None:
    """One line for each of torch and gcpass, and what was asked for."""
    whole = rows["gcpass"]["measured_bytes"]
    figure, axes = plt.subplots(figsize=(6.4, 4.2), dpi=150)
    axes.plot([0, 1], [0, whole / MIB], color="0.7", ls="--", label="what is asked for")
    for who, colour in (("torch", "tab:orange"), ("gcpass", "tab:blue")):
        points = sorted(
            (float(label.partition(" ")[2] or 1), row["measured_bytes"] / MIB)
            for label, row in rows.items()
            if label.partition(" ")[0] == who and "measured_bytes" in row
        )
        name = "torch activation_memory_budget" if who == "torch" else "gcpass memory_budget"
        axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name)
    axes.set_xlim(0, 1.03)
    axes.set_ylim(0, None)
    axes.set_xlabel("requested fraction")
    axes.set_ylabel("measured peak, MiB")
    axes.set_title(f"{model}, `cpu` size, Inductor")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    main()

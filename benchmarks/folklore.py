"""What people say about activation checkpointing, and what the planner and the measurements say.

    python -m benchmarks.folklore                     all sections, which takes an hour
    python -m benchmarks.folklore --only lora flash   these; the others as they are in the record
    python -m benchmarks.folklore --only              none: the page is written again

Plans are predictions for one device (`--hardware`), made on fake tensors; nothing is run, so that
the figures do not depend on how busy the machine is. Measured figures are read from the record of
`gcpass compare` in `benchmarks/results/compare.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import _amounts, _choices, _stacking
from benchmarks._record import where

RECORD = Path(__file__).parent / "results" / "folklore.jsonl"
PAGE = Path(__file__).parent.parent / "docs" / "folklore.md"

SECTIONS = _amounts.SECTIONS | _choices.SECTIONS | _stacking.SECTIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, default=RECORD, help="a section a line")
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=list(SECTIONS))
    options = parser.parse_args()
    for name in options.only:
        print(name, file=sys.stderr, flush=True)
        start = time.process_time()
        figures = SECTIONS[name].find(options.hardware)
        found = {
            "section": name,
            **where(),
            "hardware": options.hardware,
            "cpu_seconds": round(time.process_time() - start, 1),
            "figures": figures,
        }
        write(options.record, read(options.record) | {name: found})
    options.out.write_text("\n".join(page(read(options.record))) + "\n")


def read(record: Path) -> dict[str, dict[str, Any]]:
    """What is known of each section."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {found["section"]: found for found in map(json.loads, lines)}


def write(record: Path, known: dict[str, dict[str, Any]]) -> None:
    lines = [json.dumps(known[name]) for name in SECTIONS if name in known]
    record.write_text("\n".join(lines) + "\n")


def page(known: dict[str, dict[str, Any]]) -> list[str]:
    """The lines of the page."""
    found = [known[name] for name in SECTIONS if name in known]
    made = sorted({f"{f['date'][:10]}, gcpass {f['gcpass']}, torch {f['torch']}" for f in found})
    hardware = sorted({f"`{f['hardware']}`" for f in found})
    lines = [
        "# What people say about checkpointing",
        "",
        f"Made by `python -m benchmarks.folklore` ({'; '.join(made)}); the figures are in "
        "`benchmarks/results/folklore.jsonl`. Predictions are for the profile "
        f"{', '.join(hardware)}, with Inductor's fusion, of models traced on the CPU (where attention "
        "with dropout is not fused); peaks are what a step holds beyond weights and inputs, gradients "
        "included. Measured figures are of the zoo's `cpu` size on two CPU cores "
        "([compare.md](compare.md)).",
    ]
    for name in SECTIONS:
        if name in known:
            lines += ["", *SECTIONS[name].tell(known[name]["figures"])]
    return lines


if __name__ == "__main__":
    main()

"""What gcpass promises, checked on one CUDA device within nine minutes.

    python -m benchmarks.gpu --out gpu.jsonl
    python -m benchmarks.gpu --device cpu --tiny --out /tmp/tiny.jsonl    # the same code, anywhere

Four parts, in order of worth; each can be left out (``--parts 1 3``), and none starts a row that
the time left is too short for. Every row is written to the record as it is made, failures too.

1. predicted against measured peak and step time: `llama` (8 wide layers, bf16), `gpt2`, `vit`,
   `resnet`, without a budget and at 0.6 of the predicted peak
2. the sweep of pytorch#197838: a narrow Llama of 32 layers, torch's budgets from 0.05 to 0.35
   against gcpass at the bytes that torch measured; op by op, so that nothing is compiled
3. each layer in `torch.utils.checkpoint` against gcpass at the peak measured there
4. the largest batch that no policy, each layer in `torch.utils.checkpoint`, torch's partitioner and
   gcpass fit into one budget, and tokens per second there
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gcpass
from benchmarks._peers import best_torch_policy
from benchmarks._record import plan_numbers, where
from benchmarks.models import build
from gcpass import InfeasibleBudget
from gcpass.fx._measure import Step
from gcpass.fx._options import Options, make_request

STEPS = 7
MIB = 2**20
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "device": {
        "llama": {"layers": 8, "hidden": 2048, "intermediate": 5504, "heads": 16, "batch": 8},
        "gpt2": {"batch": 8},
        "vit": {"batch": 64},
        "resnet": {"blocks": 16, "batch": 32},
        "narrow": {},
        "batches": {"layers": 8, "hidden": 1024, "intermediate": 2752, "heads": 16, "batch": 1},
    },
    "tiny": {name: {} for name in ("llama", "gpt2", "vit", "resnet", "narrow", "batches")},
}
BATCH_BUDGET = {"device": 16 * 2**30, "tiny": 2 * MIB}
SWEEP = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
TORCH_BUDGETS = (0.5, 0.2, 0.1, 0.0)


@dataclass
class Bench:
    """Where to run, how long, and what was found."""

    device: str
    tiny: bool
    codegen: str
    deadline: float
    out: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def size(self) -> str:
        return "tiny" if self.tiny else "device"

    def build(self, name: str, **changes: Any) -> tuple[Any, tuple[Any, ...]]:
        """A model of the zoo and its inputs, on the device."""
        zoo = "llama" if name == "batches" else name
        options = {**SHAPES[self.size][name], **changes}
        fn, args = build(zoo, "tiny" if self.tiny else "paper", **options)
        return fn.to(self.device), tuple(a.to(self.device) for a in args)

    def options(
        self, budget: object = None, policy: str | None = None, codegen: str = ""
    ) -> Options:
        request = make_request(budget, policy, "auto", "error")
        return Options(request=request, codegen=codegen or self.codegen)

    def plain(self) -> Options | None:
        """Without gcpass; op by op, gcpass keeping everything."""
        return None if self.codegen == "inductor" else self.options(policy="none")

    def row(self, part: int, label: str, needs_seconds: float, make: Callable[[], Any]) -> Any:
        """Make a row and write it down; one that fails or that there is no time for, too."""
        start, said = time.monotonic(), {"part": part, "row": label}
        result: dict[str, Any] | None = None
        if self.deadline - start < needs_seconds:
            said["skipped"] = f"needs {needs_seconds:.0f} s"
        else:
            try:
                result = make()
            except Exception as error:  # a row that fails is a finding, and the next one runs
                said["error"] = f"{type(error).__name__}: {error}"[:500]
        said |= {**(result or {}), "took_seconds": round(time.monotonic() - start, 1)}
        self.rows.append(said)
        with self.out.open("a") as file:
            file.write(json.dumps(said) + "\n")
        print(describe(said), flush=True)
        gc.collect()
        torch._dynamo.reset()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return result


def run(
    fn: Any, args: Any, chosen: Options | None, steps: int = STEPS, tokens: int = 0
) -> dict[str, Any]:
    """One configuration compiled, weighed and timed."""
    start = time.perf_counter()
    step = Step(fn, args, None, chosen)
    step.run()
    compiled = time.perf_counter() - start
    peak = step.peak_bytes()
    seconds = [step.seconds() for _ in range(steps)]
    median = statistics.median(seconds)
    return {
        "measured_bytes": peak,
        "seconds": seconds,
        "seconds_median": median,
        "compile_seconds": compiled,
        **({"tokens_per_second": tokens / median} if tokens else {}),
        **plan_numbers(step.plans),
    }


def part1(bench: Bench) -> None:
    configurations = {"plain": bench.plain(), "none": bench.options(), "0.6": bench.options(0.6)}
    for name in ("llama", "gpt2", "vit", "resnet"):
        for label, chosen in configurations.items():
            bench.row(1, f"{name} {label}", 45, lambda n=name, c=chosen: run(*bench.build(n), c))


def part2(bench: Bench) -> None:
    fn, args = bench.build("narrow")

    def weigh(budget: object, policy: str | None) -> dict[str, Any]:
        return run(fn, args, bench.options(budget, policy, "eager"), steps=3)

    for budget in SWEEP:
        policy = f"torch:{budget:g}"
        torchs = bench.row(2, f"torch {budget:g}", 25, lambda p=policy: weigh(None, p))
        if torchs:
            peak = torchs["measured_bytes"]
            bench.row(2, f"gcpass at torch {budget:g}", 25, lambda p=peak: weigh(p, None))


def part3(bench: Bench) -> None:
    def per_block() -> dict[str, Any]:
        fn, args = bench.build("llama")
        checkpoint_layers(fn)
        return run(fn, args, bench.plain())

    found = bench.row(3, "llama per_block, without gcpass", 60, per_block)
    if found:
        chosen = bench.options(found["measured_bytes"])
        bench.row(3, "llama gcpass at that peak", 60, lambda: run(*bench.build("llama"), chosen))


def part4(bench: Bench) -> None:
    budget = BATCH_BUDGET[bench.size]

    def largest(fit: Callable[[int], int], chosen: Options | None, each: bool) -> dict[str, Any]:
        return largest_batch(bench, budget, fit, chosen, each)

    def without_policy(each: bool) -> dict[str, Any]:
        kept = bench.options(policy="none", codegen="eager")
        return largest(lambda batch: weigh(bench, batch, kept, each), bench.plain(), each)

    def by_torch() -> dict[str, Any]:
        small = bench.build("batches", batch=2)
        policy = best_torch_policy(*small, TORCH_BUDGETS, codegen="eager")
        eager = bench.options(policy=policy, codegen="eager")
        chosen = bench.options(policy=policy)
        found = largest(lambda batch: weigh(bench, batch, eager, False), chosen, False)
        return {"policy": policy, **found}

    def by_gcpass() -> dict[str, Any]:
        return largest(lambda batch: smallest_peak(bench, batch), bench.options(budget), False)

    contenders: dict[str, Callable[[], dict[str, Any]]] = {
        "none": lambda: without_policy(False),
        "per_block": lambda: without_policy(True),
        "torch": by_torch,
        "gcpass": by_gcpass,
    }
    for label, make in contenders.items():
        bench.row(4, f"{label} within {budget / MIB:.0f} MiB", 75, make)


def largest_batch(
    bench: Bench,
    budget: int,
    peak_of: Callable[[int], int],
    chosen: Options | None,
    checkpointed: bool,
) -> dict[str, Any]:
    """The largest batch whose peak is within the budget, and what it runs like.

    The peak grows linearly with the batch: two small ones say how large a batch may be, and it is
    taken smaller until it really fits.
    """
    two, four = peak_of(2), peak_of(4)
    batch = max(2 + (budget - two) // max((four - two) // 2, 1), 1)
    while batch:
        fn, args = bench.build("batches", batch=batch)
        if checkpointed:
            checkpoint_layers(fn)
        try:
            found = run(fn, args, chosen, tokens=args[0].numel())
        except (InfeasibleBudget, torch.OutOfMemoryError):
            found = {}
        if found and found["measured_bytes"] <= budget:
            return {"batch": batch, **found}
        batch = batch * 15 // 16
    raise RuntimeError("not even a batch of 1 fits")


def weigh(bench: Bench, batch: int, chosen: Options, checkpointed: bool) -> int:
    """The peak of a batch."""
    fn, args = bench.build("batches", batch=batch)
    if checkpointed:
        checkpoint_layers(fn)
    step = Step(fn, args, None, chosen)
    step.run()
    return step.peak_bytes()


def smallest_peak(bench: Bench, batch: int) -> int:
    """The smallest peak of a batch that gcpass finds a plan for."""
    fn, args = bench.build("batches", batch=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a byte is too little
        plan = gcpass.plan(
            fn, args, memory_budget=1, codegen="eager", solver="segments", on_infeasible="best"
        )
    return plan.predicted_peak_bytes


def checkpoint_layers(fn: Any) -> None:
    """Every decoder layer in `torch.utils.checkpoint`, as transformers does it."""
    fn.model.gradient_checkpointing_enable({"use_reentrant": False})


PARTS = {1: part1, 2: part2, 3: part3, 4: part4}


def describe(row: dict[str, Any]) -> str:
    """A row as a line."""
    line = f"{row['part']}  {row['row']:<32}"
    for why in ("skipped", "error"):
        if why in row:
            return f"{line}{why}: {row[why]}"
    predicted = row.get("predicted_bytes")
    parts = [
        f"{row['measured_bytes'] / MIB:9.1f} MiB",
        f"predicted {predicted / row['measured_bytes']:.3f}x" if predicted else " " * 17,
        f"{row['seconds_median'] * 1e3:9.2f} ms",
        f"predicted {row['predicted_seconds'] * 1e3:.2f}" if predicted else "",
        f"recompute {row['recompute_ratio']:.3f}" if predicted else "",
        f"batch {row['batch']}" if "batch" in row else "",
        f"{row['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in row else "",
    ]
    return line + "  ".join(parts)


def monotone(rows: list[dict[str, Any]], prefix: str) -> str:
    """Whether a policy's measured peaks fall as its budgets do, in a sentence."""
    peaks = [
        r["measured_bytes"] for r in rows if r["row"].startswith(prefix) and "measured_bytes" in r
    ]
    rises = sum(small > large for small, large in itertools.pairwise(peaks))
    return f"{prefix}: {len(peaks)} budgets, the peak rises as the budget falls {rises} times"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models of seconds, for trying it out")
    parser.add_argument("--codegen", default="inductor", choices=("inductor", "eager"))
    parser.add_argument("--parts", nargs="*", type=int, default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --tiny tries the script out")
    deadline = time.monotonic() + 60 * chosen.minutes
    bench = Bench(chosen.device, chosen.tiny, chosen.codegen, deadline, chosen.out)
    chosen.out.write_text(json.dumps({"where": where(), "size": bench.size}) + "\n")
    for part in chosen.parts:
        try:
            PARTS[part](bench)
        except Exception as error:  # of building a model; the other parts still run
            bench.row(part, "part", 0, lambda e=error: _raise(e))
    print(
        "\n".join(
            [
                "",
                *map(describe, bench.rows),
                "",
                monotone(bench.rows, "torch "),
                monotone(bench.rows, "gcpass at torch "),
            ]
        )
    )


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    main()

"""Beliefs about models by name on a device, and about what recomputation stacks with."""

from __future__ import annotations

from functools import lru_cache

from benchmarks._beliefs import GIB, Figures, Section
from gcpass._estimate import Column, Estimate, estimate
from gcpass._fit import throughput
from gcpass._training import Device, Training, default_reserve
from gcpass._workload import Lora, Workload
from gcpass.fx._workload import Tracer

_QLORA = {"lora": Lora(r=16), "qlora": True}


@lru_cache(maxsize=2)
def _tracer(hardware: str) -> Tracer:
    def none(target: str):  # type: ignore[no-untyped-def]
        raise AssertionError(target)  # only models by name are asked for

    return Tracer(hardware, "inductor", none)


def _estimate(
    hardware: str,
    workload: Workload,
    training: Training,
    memory: int = 80,
    *,
    searched: bool = True,
) -> Estimate:
    device = Device(memory * GIB, default_reserve(memory * GIB))
    case = _tracer(hardware)(workload)
    return estimate(case, training, device, ("per_block",), searched=searched)


def _figures(of: Estimate) -> Figures:
    """The state, and each column by its name."""
    return {
        "weights_bytes": of.state.weights_nbytes,
        "optimizer_bytes": of.state.optimizer_nbytes,
        "fits": of.fits,
        "columns": {column.name: _column(column) for column in of.columns},
        "tokens_per_second": throughput(of),
    }


def _column(column: Column) -> Figures:
    assert column.heads is not None
    assert column.plan is not None
    return {
        "gradients_bytes": column.heads.gradients_nbytes,
        "activations_bytes": column.heads.activations_nbytes,
        "total_bytes": column.heads.total_nbytes,
        "recompute_ratio": column.plan.recompute_ratio,
        "step_seconds": column.step_seconds,
    }


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f}"


_NONE, _OWN, _BLOCK = "no recomputation", "gcpass", "per_block"

# -- adapters -------------------------------------------------------------------------------------


def _find_lora(hardware: str) -> Figures:
    ways = {"all": {}, "LoRA r=16": {"lora": Lora(r=16)}, "QLoRA r=16": _QLORA}
    found: Figures = {}
    for name, options in ways.items():
        workload = Workload("hf:llama-3-8b", batch=4, seq=4096, **options)
        found[name] = _figures(_estimate(hardware, workload, Training(), searched=False))
    return found


def _tell_lora(found: Figures) -> list[str]:
    lines = [
        '## "LoRA needs it too"',
        "",
        "Llama-3-8B, 4 x 4096 tokens, bf16, AdamW; GiB. Activations are those of the fullest moment, which "
        "under `per_block` is the end of the backward where all weights are trained, among nearly all "
        "gradients, and the loss where adapters are.",
        "",
        "| trained | weights | gradients | optimizer state | activations, nothing recomputed "
        "| activations, `per_block` |",
        "|---|---|---|---|---|---|",
    ]
    activations = {}
    for name, figures in found.items():
        none, block = figures["columns"][_NONE], figures["columns"][_BLOCK]
        activations[name] = none["activations_bytes"]
        gradients = max(none["gradients_bytes"], block["gradients_bytes"])
        lines.append(
            f"| {name} | {_gib(figures['weights_bytes'])} | {_gib(gradients)} "
            f"| {_gib(figures['optimizer_bytes'])} | {_gib(none['activations_bytes'])} "
            f"| {_gib(block['activations_bytes'])} |"
        )
    part = activations["LoRA r=16"] / activations["all"]
    return [
        *lines,
        "",
        "So it does: adapters take gradients and optimizer state away, and the activations become "
        f"{part:.0%} of what they were. A frozen matrix product no longer needs its input, but its adapter "
        "does; elementwise functions and attention still need theirs, and adapters have values of their "
        "own.",
    ]


# -- 7B -------------------------------------------------------------------------------------------


def _find_seven_billion(hardware: str) -> Figures:
    workload = Workload("hf:llama-2-7b", batch=8, seq=4096)
    return _figures(_estimate(hardware, workload, Training()))


def _tell_seven_billion(found: Figures) -> list[str]:
    none, own, block = (found["columns"][name] for name in (_NONE, _OWN, _BLOCK))
    verdict = "fits" if found["fits"] else "does not fit"
    return [
        '## "7B, 4k context, batch 8: activations over 80 GB"',
        "",
        f"Llama-2-7B, bf16, at the fullest moment of the step: {_gib(none['activations_bytes'])} GiB of "
        "activations and temporaries with nothing recomputed; with `per_block` "
        f"{_gib(block['activations_bytes'])}, at the end of the backward, beside "
        f"{_gib(block['gradients_bytes'])} of gradients. On 80 GiB, with AdamW, it {verdict} with "
        f"{own['recompute_ratio']:.0%} of the forward recomputed ({_gib(own['activations_bytes'])} GiB of "
        f"activations, {_gib(own['gradients_bytes'])} of gradients; `per_block` recomputes "
        f"{block['recompute_ratio']:.0%}).",
    ]


# -- batches --------------------------------------------------------------------------------------

_BATCHES = (1, 2, 4, 8)
_SEQS = (512, 8192)


def _find_batches(hardware: str) -> Figures:
    found: Figures = {}
    for seq in _SEQS:
        found[str(seq)] = {}
        for batch in _BATCHES:
            workload = Workload("hf:llama-3-8b", batch=batch, seq=seq, lora=Lora(r=16))
            found[str(seq)][str(batch)] = _figures(_estimate(hardware, workload, Training()))
    return found


def _tell_batches(found: Figures) -> list[str]:
    lines = [
        '## "Batch 1 to 4 raises throughput, though each step is slower"',
        "",
        "Llama-3-8B with LoRA on 80 GiB: predicted tokens a second of the cheapest plan that fits, "
        "against batch 1.",
        "",
        "| tokens | batch | recomputation | step | tokens a second |",
        "|---|---|---|---|---|",
    ]
    said = []
    for seq, batches in found.items():
        rates = {}
        for batch, figures in batches.items():
            if not figures["fits"]:
                lines.append(f"| {seq} | {batch} | does not fit | | |")
                continue
            own = figures["columns"][_OWN]
            rates[batch] = figures["tokens_per_second"] / batches["1"]["tokens_per_second"]
            lines.append(
                f"| {seq} | {batch} | {own['recompute_ratio']:.0%} "
                f"| {own['step_seconds'] * 1000:.0f} ms | {rates[batch]:.2f}x |"
            )
        best = max(rates, key=lambda batch: rates[batch])
        said.append(f"of {seq} tokens batch {best} ({rates[best]:.2f}x)")
    return [
        *lines,
        "",
        f"By this model of the device the fastest of these are, with sequences {' and '.join(said)}. "
        "Where a single sequence keeps the device busy, a larger batch adds only recomputation. What "
        "launching kernels costs the host is not modelled. `gcpass fit` compares sizes for a model and a "
        "device.",
    ]


# -- 70B ------------------------------------------------------------------------------------------

_SMALL = {"batch": 1, "seq": 4096}
_ZERO3_64 = Training(zero=3, world_size=64)
_ZERO3_2 = Training(zero=3, world_size=2)


def _workload(**options: object) -> Workload:
    return Workload("hf:llama-3-70b", **_SMALL, **options)  # type: ignore[arg-type]


_WAYS: dict[str, tuple[Workload, Training, int]] = {
    "bf16, AdamW, 80 GiB": (_workload(), Training(), 80),
    "ZeRO-3 over 64 devices, 80 GiB": (_workload(), _ZERO3_64, 80),
    "QLoRA, 80 GiB": (_workload(**_QLORA), Training(), 80),
    "QLoRA, 24 GiB": (_workload(**_QLORA), Training(), 24),
    "QLoRA, ZeRO-3 over 2 devices, 24 GiB": (_workload(**_QLORA), _ZERO3_2, 24),
    "the same, sequence over both": (_workload(**_QLORA, sequence_parallel=2), _ZERO3_2, 24),
}


def _find_seventy_billion(hardware: str) -> Figures:
    return {
        name: _figures(_estimate(hardware, workload, training, memory))
        for name, (workload, training, memory) in _WAYS.items()
    }


def _tell_seventy_billion(found: Figures) -> list[str]:
    lines = [
        '## "It stacks with bf16, ZeRO, QLoRA and sequence parallelism: 70B QLoRA on 24 GB"',
        "",
        "Llama-3-70B, one sequence of 4096 tokens; GiB on one device.",
        "",
        "| way | weights | optimizer state | activations and gradients, nothing recomputed "
        "| the same, gcpass | recomputation | fits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in found.items():
        none, own = figures["columns"][_NONE], figures["columns"][_OWN]
        cells = [_gib(h["activations_bytes"] + h["gradients_bytes"]) for h in (none, own)]
        lines.append(
            f"| {name} | {_gib(figures['weights_bytes'])} | {_gib(figures['optimizer_bytes'])} "
            f"| {cells[0]} | {cells[1]} | {own['recompute_ratio']:.0%} "
            f"| {'yes' if figures['fits'] else 'no'} |"
        )
    weights = found["QLoRA, 24 GiB"]["weights_bytes"]
    return [
        *lines,
        "",
        "They do stack, for each is about another head: 4 bits and ZeRO-3 for the weights, LoRA for "
        "gradients and optimizer state, recomputation and shorter pieces of a sequence for activations. "
        f"But the weights alone are {_gib(weights)} GiB in 4 bits: on one device of 24 GB they do not "
        "fit (unless offloaded), which no recomputation changes.",
    ]


SECTIONS = {
    "lora": Section(_find_lora, _tell_lora),
    "seven_billion": Section(_find_seven_billion, _tell_seven_billion),
    "batches": Section(_find_batches, _tell_batches),
    "seventy_billion": Section(_find_seventy_billion, _tell_seventy_billion),
}

"""The sections of the folklore page that are about models by name, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gcpass._estimate import Column, Estimate, estimate
from gcpass._fit import throughput
from gcpass._training import Device, Heads, Training, default_reserve
from gcpass._workload import Lora, Workload
from gcpass.fx._workload import Tracer

GIB = 2**30
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
    policies: Sequence[str] = ("per_block",),
) -> Estimate:
    device = Device(memory * GIB, default_reserve(memory * GIB))
    return estimate(_tracer(hardware)(workload), training, device, policies)


def _heads(column: Column) -> Heads:
    assert column.heads is not None
    return column.heads


def lora(hardware: str) -> list[str]:
    lines = [
        '## "LoRA needs it too"',
        "",
        "Llama-3-8B, 4 x 4096 tokens, bf16, AdamW; GiB.",
        "",
        "| trained | weights | gradients | optimizer state | activations, nothing recomputed "
        "| activations, `per_block` |",
        "|---|---|---|---|---|---|",
    ]
    left: dict[str, Heads] = {}
    for name, options in (("all", {}), ("LoRA r=16", {"lora": Lora(r=16)}), ("QLoRA r=16", _QLORA)):
        workload = Workload("hf:llama-3-8b", batch=4, seq=4096, **options)
        found = _estimate(hardware, workload, Training())
        none, block = _heads(found.columns[0]), _heads(found.columns[2])
        state = found.state
        gradients = max(none.gradients_nbytes, block.gradients_nbytes)
        left[name] = none
        lines.append(
            f"| {name} | {_gib(state.weights_nbytes)} | {_gib(gradients)} "
            f"| {_gib(state.optimizer_nbytes)} | {_gib(none.activations_nbytes)} "
            f"| {_gib(block.activations_nbytes)} |"
        )
    part = left["LoRA r=16"].activations_nbytes / left["all"].activations_nbytes
    return [
        *lines,
        "",
        f"So it does: adapters take gradients and optimizer state away, and leave {part:.0%} of the "
        "activations. What a frozen matrix product no longer needs is its input; elementwise functions, "
        "attention and the adapters still need theirs.",
    ]


def seven_billion(hardware: str) -> list[str]:
    workload = Workload("hf:llama-2-7b", batch=8, seq=4096)
    found = _estimate(hardware, workload, Training())
    none, mine, block = map(_heads, found.columns)
    plan = found.best.plan
    assert plan is not None
    verdict = "fits" if found.fits else "does not fit"
    return [
        '## "7B, 4k context, batch 8: activations over 80 GB"',
        "",
        f"Llama-2-7B, bf16: {_gib(none.activations_nbytes)} GiB of activations and temporaries with "
        f"nothing recomputed, {_gib(block.activations_nbytes)} with `per_block`. On 80 GiB, with AdamW, it "
        f"{verdict} with {plan.recompute_ratio:.0%} of the forward recomputed "
        f"({_gib(mine.activations_nbytes)} GiB of activations): far more than 80 GB without, and not a "
        "reason for a second device.",
    ]


def batches(hardware: str) -> list[str]:
    sizes = (1, 2, 4, 8)
    lines = [
        '## "Batch 1 to 4 raises throughput, though each step is slower"',
        "",
        "Llama-3-8B with LoRA, 8192 tokens, on 80 GiB: predicted tokens a second of the cheapest plan "
        "that fits, against batch 1.",
        "",
        "| batch | recomputation | step | tokens a second |",
        "|---|---|---|---|",
    ]
    base = None
    rates = {}
    for size in sizes:
        workload = Workload("hf:llama-3-8b", batch=size, seq=8192, lora=Lora(r=16))
        found = _estimate(hardware, workload, Training(), policies=())
        plan = found.best.plan
        assert plan is not None
        if not found.fits:
            lines.append(f"| {size} | does not fit | | |")
            continue
        base = base or throughput(found)
        rates[size] = throughput(found) / base
        lines.append(
            f"| {size} | {plan.recompute_ratio:.0%} | {found.best.step_seconds:.2f} s "
            f"| {rates[size]:.2f}x |"
        )
    best = max(rates, key=lambda size: rates[size])
    return [
        *lines,
        "",
        f"By this model of the device, batch {best} is the fastest: a sequence of 8192 tokens keeps it "
        "busy already, so a larger batch adds only recomputation. The rule comes from short sequences and "
        "from launch-bound steps. `gcpass fit` compares sizes for a model and a device.",
    ]


def seventy_billion(hardware: str) -> list[str]:
    small = {"batch": 1, "seq": 4096}
    ways: list[tuple[str, Workload, Training, int]] = [
        ("bf16, AdamW, 80 GiB", Workload("hf:llama-3-70b", **small), Training(), 80),
        (
            "ZeRO-3 over 64 devices, 80 GiB",
            Workload("hf:llama-3-70b", **small),
            Training(zero=3, world_size=64),
            80,
        ),
        ("QLoRA, 80 GiB", Workload("hf:llama-3-70b", **small, **_QLORA), Training(), 80),
        ("QLoRA, 24 GiB", Workload("hf:llama-3-70b", **small, **_QLORA), Training(), 24),
        (
            "QLoRA, ZeRO-3 over 2 devices, 24 GiB",
            Workload("hf:llama-3-70b", **small, **_QLORA),
            Training(zero=3, world_size=2),
            24,
        ),
        (
            "the same, sequence over both",
            Workload("hf:llama-3-70b", **small, **_QLORA, sequence_parallel=2),
            Training(zero=3, world_size=2),
            24,
        ),
    ]
    lines = [
        '## "It stacks with bf16, ZeRO, QLoRA and sequence parallelism: 70B QLoRA on 24 GB"',
        "",
        "Llama-3-70B, one sequence of 4096 tokens; GiB on one device.",
        "",
        "| way | weights | optimizer state | activations and gradients, nothing recomputed "
        "| the same, gcpass | recomputation | fits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, workload, training, memory in ways:
        found = _estimate(hardware, workload, training, memory, ())
        none, mine = _heads(found.columns[0]), _heads(found.columns[1])
        plan = found.best.plan
        assert plan is not None
        cells = [_gib(h.activations_nbytes + h.gradients_nbytes) for h in (none, mine)]
        lines.append(
            f"| {name} | {_gib(mine.weights_nbytes)} | {_gib(mine.optimizer_nbytes)} | {cells[0]} "
            f"| {cells[1]} | {plan.recompute_ratio:.0%} | {'yes' if found.fits else 'no'} |"
        )
    return [
        *lines,
        "",
        "They do stack, for each is about another head: 4 bits and ZeRO-3 for the weights, LoRA for "
        "gradients and optimizer state, recomputation and shorter pieces of a sequence for activations. "
        "But 70 billion weights of 4 bits are 33 GiB and more: on 24 GB they fit only divided over devices "
        "(or offloaded), which no recomputation changes.",
    ]


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f}"

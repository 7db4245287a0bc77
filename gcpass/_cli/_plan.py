"""``gcpass plan``: the plan of a training step, or whether it fits into a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from gcpass._budget import parse_budget
from gcpass._cli import _options as o
from gcpass._cli._files import check_writable, load, show, write_json
from gcpass._cli._workload import is_named, read, tracer
from gcpass._errors import OptionError

NOT_FITTING = 3  # exit code
_OF_A_PLAN = ("budget", "policy", "rule")
_OF_A_DEVICE = (
    "config",
    "batch",
    "seq",
    "dtype",
    "lora",
    "qlora",
    "sequence_parallel",
    "optimizer",
    "master_weights",
    "zero",
    "world_size",
    "reserve",
)


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """The options that stand on the command line; typer has a click of its own, or the usual."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


def read_rules(given: list[str] | None) -> dict[str, str]:
    """``["layers.*.mlp=recompute"]`` as a mapping."""
    rules = {}
    for text in given or ():
        pattern, separator, said = text.partition("=")
        if not separator:
            raise OptionError(f"--rule {text!r} must be PATTERN=save or PATTERN=recompute")
        rules[pattern] = said
    return rules


def plan(
    context: typer.Context,
    target: o.Model,
    budget: Annotated[
        str | None,
        typer.Option(help="6GiB, bytes, a fraction such as 0.5 of the unbounded peak, or auto."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="A manual policy, such as none, full or torch:0.5.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="What modules shall do: layers.*.mlp=recompute, or =save; again for more.",
            metavar="PATTERN=SAID",
        ),
    ] = None,
    codegen: o.Codegen = "inductor",
    hardware: o.Hardware = "auto",
    fake: o.Fake = False,
    json: o.Json = None,
    config: o.Config = None,
    batch: o.Batch = None,
    seq: o.Seq = None,
    dtype: o.Dtype = None,
    lora: o.LoraOption = None,
    qlora: o.Qlora = False,
    sequence_parallel: o.SequenceParallel = 1,
    optimizer: o.Optimizer = "adamw",
    master_weights: o.MasterWeights = False,
    zero: o.Zero = 0,
    world_size: o.WorldSize = 1,
    device_memory: o.DeviceMemory = None,
    reserve: o.Reserve = None,
) -> None:
    """Plan a training step without running it; for a model by name, whether it fits a device.

    Exit codes: 0 fits, 3 does not, 2 bad input.
    """
    on_a_device = is_named(target) or device_memory is not None
    given = _given(context, _OF_A_PLAN)
    if on_a_device and given:
        raise OptionError(f"{given[0]} is of a plan; here the device's memory decides")
    given = _given(context, _OF_A_DEVICE)
    if given and not on_a_device:
        raise OptionError(
            f"{given[0]} says how a model trains on a device, and {target} is only planned: give "
            "--device-memory, too, or write hf:NAME"
        )
    rules = read_rules(rule)
    bound = parse_budget(budget, where="--budget")
    check_writable(json, "--json")
    if not on_a_device:
        import gcpass

        fn, args = load(target, fake=fake)
        made = gcpass.plan(
            fn,
            args,
            memory_budget=bound,
            policy=policy,
            rules=rules,
            codegen=codegen,
            hardware=hardware,
        )
        write_json(json, replace(made, target=target).to_json())
        show(json, made.summary())
        return
    asked = read(
        target,
        config=config,
        batch=batch,
        seq=seq,
        dtype=dtype,
        lora=lora,
        qlora=qlora,
        sequence_parallel=sequence_parallel,
        optimizer=optimizer,
        master_weights=master_weights,
        zero=zero,
        world_size=world_size,
        device_memory=device_memory,
        reserve=reserve,
        hardware=hardware,
    )
    from gcpass._advice import advise
    from gcpass._estimate import estimate
    from gcpass._report._training import estimate_record, estimate_table, to_json

    trace = tracer(asked, codegen, fake=fake)
    found = estimate(trace(asked.workload), asked.training, asked.device)
    advice = [] if found.fits else advise(found, trace)
    write_json(json, to_json(estimate_record(found, advice)))
    show(json, estimate_table(found, advice))
    if not found.fits:
        raise typer.Exit(NOT_FITTING)

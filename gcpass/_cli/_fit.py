"""``gcpass fit``: the largest micro-batch or sequence that fits, and the fastest."""

from __future__ import annotations

from typing import Annotated

import typer

from gcpass._cli import _options as o
from gcpass._cli._files import check_writable, show, write_json
from gcpass._cli._plan import NOT_FITTING
from gcpass._cli._workload import read, tracer
from gcpass._errors import OptionError, did_you_mean
from gcpass._fit import MOST, search, sizing

_SEQ_STEP = 128  # tokens: sequence lengths are multiples of it


def fit(
    model: o.Model,
    over: Annotated[str, typer.Option(help="What is made larger: batch or seq.")] = "batch",
    codegen: o.Codegen = "inductor",
    hardware: o.Hardware = "auto",
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
    """Find the largest batch or sequence that fits a device, and the one that is fastest.

    Exit codes: 0 something fits, 3 nothing does, 2 bad input.
    """
    if over not in ("batch", "seq"):
        raise OptionError(f"--over {over} is not known; {did_you_mean(over, ('batch', 'seq'))}")
    if not model.startswith("hf:"):
        raise OptionError(f"gcpass fit builds the model at every size: write hf:NAME, not {model}")
    if (batch if over == "batch" else seq) is not None:
        raise OptionError(f"--{over} is what --over {over} looks for; leave it out")
    check_writable(json, "--json")
    asked = read(
        model,
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
    from gcpass._report._training import fit_record, fit_table, to_json
    from gcpass.fx._hf import find_architecture

    trace = tracer(asked, codegen, fake=False)
    architecture = find_architecture(model.removeprefix("hf:"), asked.workload.config)
    takes_images = architecture.kind == "image"
    if over == "seq" and takes_images:
        raise OptionError(f"--over seq: {model} takes images")

    of = sizing(trace, asked.workload, over, asked.training, asked.device)
    step, most = 1, MOST
    if over == "seq":
        step = _SEQ_STEP * sequence_parallel
        longest = architecture.longest
        most = MOST * step if longest is None else longest
        step = min(step, most)
    found = search(of, asked.device.usable_nbytes, over, step=step, most=most)
    write_json(json, to_json(fit_record(found)))
    show(json, fit_table(found, "images" if takes_images else "tokens"))
    if not found.largest:
        raise typer.Exit(NOT_FITTING)

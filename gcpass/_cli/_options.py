"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:CALLABLE",
        help="A module or a .py file, and the callable in it that returns (fn, args): "
        "fn(*args) is a loss.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="hf:NAME (a preset such as llama-3-8b, or a model type of transformers), "
        "zoo:NAME[:SIZE] (of the benchmarks), or MODULE:CALLABLE that returns (fn, args).",
    ),
]
Codegen = Annotated[str, typer.Option(help="Whose memory is predicted: inductor or eager.")]
Hardware = Annotated[
    str,
    typer.Option(
        help="The cost model: auto (the device's profile), measured (ops are run), reference, a "
        "profile such as h100, or the path of one."
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(metavar="PLAN.json", help="A plan, as gcpass plan --json writes it."),
]
Fake = Annotated[bool, typer.Option("--fake", help="Build model and inputs without memory.")]
Json = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write all numbers here, too; - for standard output alone."),
]


def listed(text: str) -> list[str]:
    """What an option names between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


# -- a training step on a device ----------------------------------------------------------------

_MODEL, _MEMORY = "Model (hf: only)", "Training and device"


def _about(panel: str, text: str, metavar: str | None = None):  # type: ignore[no-untyped-def]
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel)


Config = Annotated[
    list[str] | None,
    _about(_MODEL, "A change of the configuration, or a config.json; again for more.", "KEY=VALUE"),
]
Batch = Annotated[int | None, _about(_MODEL, "Sequences or images in the micro-batch.")]
Seq = Annotated[int | None, _about(_MODEL, "Tokens in a sequence.")]
Dtype = Annotated[
    str | None, _about(_MODEL, "Of weights and activations: bf16 (the default), fp16 or fp32.")
]
LoraOption = Annotated[
    str | None,
    _about(_MODEL, "Train adapters: r=16[,alpha=32][,dropout=0.1][,targets=q_proj+v_proj].", "r=R"),
]
Qlora = Annotated[bool, typer.Option("--qlora", help="4-bit weights.", rich_help_panel=_MODEL)]
SequenceParallel = Annotated[int, _about(_MODEL, "Devices that each sequence is spread over.", "N")]
Optimizer = Annotated[str, _about(_MEMORY, "adamw, adamw8bit, sgd (no momentum) or none.")]
MasterWeights = Annotated[
    bool,
    typer.Option(
        "--master-weights",
        help="The optimizer keeps fp32 copies of the weights.",
        rich_help_panel=_MEMORY,
    ),
]
Zero = Annotated[int, _about(_MEMORY, "ZeRO's stage, 0 to 3; 3 is FSDP.")]
WorldSize = Annotated[int, _about(_MEMORY, "Devices that ZeRO divides over.")]
DeviceMemory = Annotated[
    str | None, _about(_MEMORY, "80GiB; by default what the hardware's profile says.", "SIZE")
]
Reserve = Annotated[
    str | None, _about(_MEMORY, "Memory left free; by default 1 GiB and 2% of it.", "SIZE")
]

"""``gcpass calibrate``: measure this device, and price ops by what was measured from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gcpass._cli._files import check_writable, write_text
from gcpass._errors import OptionError
from gcpass._units import format_seconds


def calibrate(
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; by default CUDA where there is a device.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Write the profile here, for hardware="FILE"; by default where hardware="auto" '
            "looks for it.",
        ),
    ] = None,
) -> None:
    """Measure a device (seconds), and write its profile."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as bar:
        task = bar.add_task("importing torch", total=None)
        from gcpass.fx import _calibrate as work

        chosen = work.find_device(device)
        path = out or work.calibrated_path(chosen)
        _make_directory(path.parent)
        check_writable(path, "--out")
        bar.update(task, total=work.STAGES)
        stages = -1

        def progress(stage: str) -> None:
            nonlocal stages
            stages += 1
            bar.update(task, completed=stages, description=stage)

        hardware = work.calibrate(chosen, progress)
        bar.update(task, completed=work.STAGES, description="done")
    write_text(path, hardware.to_json(), "--out")
    rates = {k: v * hardware.attained["matmul"] for k, v in hardware.flops_per_second.items()}
    typer.echo(hardware.name)
    for name, rate in rates.items():
        typer.echo(f"  {name + ' matmul':<24}{rate / 1e12:10.3f} TFLOP/s")
    for kind in ("convolution", "attention"):
        typer.echo(f"  {kind:<24}{hardware.attained[kind]:10.2f} of the matmul rate")
    typer.echo(f"  {'copy':<24}{hardware.byte_rate / 1e9:10.1f} GB/s")
    for kind, rate in hardware.elements_per_second.items():
        typer.echo(f"  {kind:<24}{rate / 1e9:10.2f} billion elements/s")
    typer.echo(f"  {'launch':<24}{format_seconds(hardware.launch_seconds):>10}")
    used = 'used by hardware="auto"' if out is None else f'use it with hardware="{path}"'
    typer.echo(f"written to {path}; {used}")


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{directory} cannot be made: {error.strerror}; set GCPASS_CACHE or --out to another"
        ) from error

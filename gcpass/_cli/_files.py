"""What the commands read and write: a user's training step, plans, and JSON files."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from rich.console import Console, RenderableType

from gcpass._errors import OptionError, did_you_mean
from gcpass._plan import Plan
from gcpass._report import check_writable as _check_writable


def load(target: str, *, fake: bool = False) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The ``(fn, args)`` that ``MODULE:CALLABLE`` returns, or a model of the benchmarks' zoo.

    Args:
        target: a dotted module, looked for from the working directory too, or the path of a
            ``.py`` file; a colon; and the name of a callable in it that takes no arguments. Or
            ``zoo:NAME:SIZE``; without a size ``paper`` if it is fake, else ``cpu``.
        fake: import and call it under `gcpass.fake_mode`.

    Returns:
        A callable and its arguments.

    Raises:
        OptionError: there is no such module or callable, or it returns something else.
    """
    import gcpass

    with gcpass.fake_mode() if fake else contextlib.nullcontext():
        return _zoo(target, fake) if target.startswith("zoo:") else _load(target)


def _zoo(target: str, fake: bool) -> tuple[Callable[..., Any], Sequence[Any]]:
    try:
        from benchmarks import models
    except ImportError:
        raise OptionError(
            f"{target}: the zoo is in gcpass's repository, not in the package; run this from a "
            "checkout of it"
        ) from None
    name, _, size = target.removeprefix("zoo:").partition(":")
    size = size or ("paper" if fake else "cpu")
    if name not in models.NAMES:
        raise OptionError(f"{target} is not known; {did_you_mean(name, models.NAMES)}")
    if size not in models.SIZES:
        raise OptionError(f"{target}: {did_you_mean(size, models.SIZES)}")
    return models.build(name, size)


def _load(target: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise OptionError(f"{target!r} is not MODULE:CALLABLE, such as train.py:step")
    if where == "hf":
        raise OptionError(
            f"{target}: gcpass plan and gcpass fit build models by name; here, give a function "
            "that returns (fn, args), such as train.py:step"
        )
    module = _load_module(where)
    build = getattr(module, name, None)
    if not callable(build):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise OptionError(f"{where} has no callable {name!r}; {did_you_mean(name, known)}")
    built = build()
    if (
        not isinstance(built, (tuple, list))
        or len(built) != 2
        or not callable(built[0])
        or not isinstance(built[1], (tuple, list))
    ):
        raise OptionError(
            f"{target} must return (fn, args), a callable and the tuple of its arguments; "
            f"it returned {type(built).__name__}"
        )
    return built[0], built[1]


def _load_module(where: str) -> ModuleType:
    path = Path(where)
    if path.suffix != ".py":
        return _import(where, Path.cwd())
    if not path.is_file():
        raise OptionError(f"there is no file {where}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # it may import its neighbours
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look modules up there
    spec.loader.exec_module(module)
    return module


def _import(name: str, directory: Path) -> ModuleType:
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there; something that it imports is not
        raise OptionError(f"there is no module {name} (no {error.name} from {directory})") from None


def read_plan(path: Path) -> Plan:
    """A stored plan.

    Raises:
        OptionError: there is no such file, or it is no plan.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError(f"{path} cannot be read: {reason}") from error
    try:
        return Plan.from_json(text)
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error


STANDARD_OUTPUT = Path("-")


def check_writable(path: Path | None, where: str) -> None:
    """Nothing, before any work, if a file can be written.

    Args:
        path: of the file; None for none, ``-`` for standard output.
        where: the option that it came from, for the error.

    Raises:
        OptionError: it cannot be written.
    """
    if path is not None and path != STANDARD_OUTPUT:
        _check_writable(path, f"{where} {path}")


def write_json(path: Path | None, text: str) -> None:
    """Write the file of ``--json``, or to standard output for ``-``; nothing for None.

    Raises:
        OptionError: it cannot be written.
    """
    if path == STANDARD_OUTPUT:
        typer.echo(text)
    elif path is not None:
        write_text(path, text + "\n", "--json")


def write_text(path: Path, text: str, where: str) -> None:
    """Write a file, named by the option ``where``.

    Raises:
        OptionError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{where} {path} cannot be written: {error.strerror}") from error


def show(json: Path | None, what: str | RenderableType) -> None:
    """Print to standard output, unless the JSON went there."""
    if json == STANDARD_OUTPUT:
        return
    if isinstance(what, str):
        typer.echo(what)
    else:
        Console(highlight=False).print(what)

"""What the commands read and write: a user's training step, and JSON files."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from rich.console import Console, RenderableType

from gcpass._errors import OptionError, did_you_mean


def load(target: str, *, fake: bool = False) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The ``(fn, args)`` that ``MODULE:CALLABLE`` returns.

    Args:
        target: a dotted module, looked for from the working directory too, or the path of a
            ``.py`` file; a colon; and the name of a callable in it that takes no arguments.
        fake: import and call it under `gcpass.fake_mode`.

    Returns:
        A callable and its arguments.

    Raises:
        OptionError: there is no such module or callable, or it returns something else.
    """
    import gcpass

    with gcpass.fake_mode() if fake else contextlib.nullcontext():
        return _load(target)


def _load(target: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise OptionError(f"{target!r} is not MODULE:CALLABLE, such as train.py:step")
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


STANDARD_OUTPUT = Path("-")


def check_writable(path: Path | None, where: str) -> None:
    """Nothing, before any work, if a file can be written.

    Args:
        path: of the file; None for none, ``-`` for standard output.
        where: the option that it came from, for the error.

    Raises:
        OptionError: it cannot be written.
    """
    if path is None or path == STANDARD_OUTPUT:
        return
    if path.is_dir():
        raise OptionError(f"{where} {path} cannot be written: it is a directory")
    if not path.parent.is_dir():
        raise OptionError(f"{where} {path} cannot be written: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"{where} {path} cannot be written: permission denied")


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

"""A program of the fuzz: a frozen list of steps, and the Python source that they stand for."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from cases._trained import BUFFERS, COMPILED, LEAVES

INPUTS = (*LEAVES, *BUFFERS, "rows")


@dataclass(frozen=True)
class Step:
    """One line of a program.

    Attributes:
        names: what it gives a name to; nothing for a write in place.
        text: its expression or statement, with ``{0}``, ``{1}``, ... for what it reads.
        reads: names of steps before it, or of `INPUTS`.
        regions: the checkpointed regions that it stands in, the outermost first.
    """

    names: tuple[str, ...]
    text: str
    reads: tuple[str, ...]
    regions: tuple[int, ...] = ()

    def line(self) -> str:
        """Its Python source."""
        text = self.text.format(*self.reads)
        return f"{', '.join(self.names)} = {text}" if self.names else text


@dataclass(frozen=True)
class Program:
    """Steps, what they return, and the tags of regions that have a policy of their own.

    Attributes:
        steps: in the order in which they run.
        results: names that the function returns.
        tags: pairs of a region and its tags, as `cases._trained.checkpoint` takes them.
    """

    steps: tuple[Step, ...]
    results: tuple[str, ...]
    tags: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def inputs(self) -> list[str]:
        """The inputs that it reads."""
        read = {name for step in self.steps for name in step.reads} | set(self.results)
        return [name for name in INPUTS if name in read]

    def is_whole(self) -> bool:
        """Whether all it reads was made before."""
        known = set(INPUTS)
        for step in self.steps:
            if not known.issuperset(step.reads):
                return False
            known.update(step.names)
        return known.issuperset(self.results)


def source(program: Program, name: str = "fn") -> str:
    """A Python function of the inputs that the program reads, and of `COMPILED`'s names."""
    parameters = ", ".join([*program.inputs(), *COMPILED])
    body = list(_block(program, program.steps, 0, set(program.results)))
    lines = [f"def {name}({parameters}):", *body, f"    return {', '.join(program.results)}"]
    return "\n".join(lines) + "\n"


def _block(program: Program, steps: Sequence[Step], depth: int, wanted: set[str]) -> Iterator[str]:
    """The lines of steps that stand in the same ``depth`` regions."""
    place = 0
    while place < len(steps):
        region = steps[place].regions[depth : depth + 1]
        end = place + 1
        while region and end < len(steps) and steps[end].regions[depth : depth + 1] == region:
            end += 1
        group, later = steps[place:end], steps[end:]
        read_later = wanted | {name for step in later for name in step.reads}
        made = [name for step in group for name in step.names]
        outputs = [name for name in made if name in read_later]
        if region and outputs:
            yield from _region(program, region[0], group, depth, outputs)
        elif region:  # nobody reads what it makes: no region is left
            yield from _block(program, group, depth + 1, read_later)
        else:
            yield "    " + group[0].line()
        place = end


def _region(
    program: Program, region: int, group: Sequence[Step], depth: int, outputs: list[str]
) -> Iterator[str]:
    made = {name for step in group for name in step.names}
    read = dict.fromkeys(name for step in group for name in step.reads)
    arguments = [name for name in read if name not in made and name not in INPUTS]
    yield f"    def region{region}({', '.join(arguments)}):"
    for line in _block(program, group, depth + 1, set(outputs)):
        yield "    " + line
    yield f"        return {', '.join(outputs)}"
    tags = dict(program.tags).get(region)
    given = [f"region{region}", *arguments, *([f"tags={tags}"] if tags else [])]
    yield f"    {', '.join(outputs)} = checkpoint({', '.join(given)})"


def function(program: Program) -> Callable[..., Any]:
    """The program as a Python function."""
    text = source(program)
    filename = f"<fuzz {abs(hash(program)):x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, filename, "exec"), scope)
    return scope["fn"]

"""Random programs, each from its seed: steps drawn by kind, and kept if eager can run them."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import torch
import torch.nn.functional as F
from cases._trained import BUFFERS, PLAIN, STEPS, TAGS, plain_step, tensors, update
from torch import Tensor

from fuzz._program import INPUTS, Program, Step, function
from fuzz._texts import KINDS

_SHORTEST, _LONGEST = 5, 20  # steps
_LARGEST = 4 * 32 * 64  # numbers that a value may have
_BOUND = 1e3  # of what a value may be
_FIXED = {"w": ("w", "u"), "p": ("b", "s"), "s": tuple(BUFFERS), "t": ("table",)}
_REFUSED = (RuntimeError, IndexError, ValueError, TypeError)  # what eager raises of bad shapes


class _Wild(Exception):
    """A write in place made a value that is too large."""


def draw(seed: int) -> Program:
    """The program of a seed, which eager can train."""
    rng = random.Random(seed)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        while True:
            program = _attempt(rng)
            if program is not None and runs_eagerly(program):
                return program
    finally:
        torch.set_default_dtype(dtype)


def runs_eagerly(program: Program) -> bool:
    """Whether eager trains it, with gradients that are numbers."""
    if not program.is_whole():
        return False
    given, gradients = tensors(), {}
    try:
        for step in range(STEPS):
            _, gradients = plain_step(function(program), given, step)
            update(given, gradients)
    except _REFUSED:
        return False
    some = [g for g in gradients.values() if g is not None]
    return bool(some) and all(bool((g.abs() < _BOUND**3).all()) for g in some)


@torch.no_grad()
def _attempt(rng: random.Random) -> Program | None:
    """Steps that fit the shapes before them; None where no program came of them."""
    values, fresh, steps = dict(tensors()), [], []
    length = rng.randint(_SHORTEST, _LONGEST)
    torch.manual_seed(0)
    try:
        for _ in range(20 * length):
            if len(steps) < length:
                steps += _step(rng, values, fresh)
    except _Wild:
        return None
    results = _results(rng, steps, values)
    if not results:
        return None
    regions = _regions(rng, _alive(steps, results))
    tags = tuple(
        (region, tuple(rng.randrange(len(TAGS)) for _ in range(rng.randint(1, 4))))
        for region in {r for step in regions for r in step.regions}
        if rng.random() < 0.3
    )
    return Program(tuple(regions), results, tags)


def _step(rng: random.Random, values: dict[str, Tensor], fresh: list[str]) -> list[Step]:
    """A step, run; none where what was drawn does not fit."""
    kind = rng.choices(list(KINDS), [often for often, _, _ in KINDS.values()])[0]
    _, count, texts = KINDS[kind]
    text = rng.choice(texts)
    reads: dict[str, str] = {}
    for letter in dict.fromkeys(re.findall(r"{([a-z])}", text)):
        candidates = _candidates(rng, letter, values, fresh)
        if not candidates:
            return []
        reads[letter] = rng.choice(candidates)
    for place, letter in enumerate(reads):
        text = text.replace(f"{{{letter}}}", f"{{{place}}}")
    names = tuple(f"v{len(values) - len(INPUTS) + i}" for i in range(count))
    step = Step(names, text, tuple(reads.values()))
    try:
        exec(step.line(), {"torch": torch, "F": F, **PLAIN}, values)
    except _REFUSED:
        return []
    if not all(map(_is_tame, (values[name] for name in (*names, *step.reads)))):
        if not names:
            raise _Wild
        for name in names:
            del values[name]
        return []
    if kind == "fresh":
        fresh += names
    return [step]


def _candidates(
    rng: random.Random, letter: str, values: dict[str, Tensor], fresh: list[str]
) -> list[str]:
    if letter in _FIXED:
        return list(_FIXED[letter])
    if letter == "f":
        return fresh
    if letter == "i":
        return [n for n, v in values.items() if v.dtype == torch.long and v.dim() == 1]
    made = [n for n, v in values.items() if n[0] == "v" and v.is_floating_point()]
    return [*made[-1:] * 6, *made[-3:] * 2, *made, "x", rng.choice(("x", "y", "table"))]


def _is_tame(value: Tensor) -> bool:
    if not 0 < value.numel() <= _LARGEST:
        return False
    return not value.is_floating_point() or bool((value.abs() <= _BOUND).all())


def _results(rng: random.Random, steps: list[Step], values: dict[str, Tensor]) -> tuple[str, ...]:
    """What no step reads, one of which a loss may take its place; now and then an alias."""
    read = {name for step in steps for name in step.reads}
    made = [name for step in steps for name in step.names if values[name].is_floating_point()]
    ends = [name for name in made if name not in read][-4:]
    if not ends:
        return ()
    if rng.random() < 0.8:
        loss = " + ".join(f"{{{place}}}.square().mean()" for place in range(len(ends)))
        name = "loss"
        steps.append(Step((name,), loss, tuple(ends)))
        ends = [name]
    if rng.random() < 0.15:
        ends.append(rng.choice([*made, "x", "w", "y"]))
    return tuple(ends)


def _alive(steps: list[Step], results: tuple[str, ...]) -> list[Step]:
    """The steps that something else sees. (A random op that nobody reads is not compiled, and the
    ops after it would draw other numbers than eager's.)"""
    seen = {*INPUTS, *results}
    while True:
        alive = [step for step in steps if seen & set(step.names or step.reads[:1])]
        more = seen | {name for step in alive for name in step.reads}
        if more == seen:
            return alive
        seen = more


def _regions(rng: random.Random, steps: list[Step]) -> list[Step]:
    """The steps, some of them in checkpointed regions, of which a second may be in the first."""
    steps = list(steps)
    count = 0
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        begin = rng.randrange(len(steps))
        group = range(begin, min(begin + rng.randint(1, 7), len(steps)))
        if len({steps[i].regions for i in group}) > 1 or len(steps[begin].regions) > 1:
            continue  # it would cross the border of another
        made = {name for i in group for name in steps[i].names}
        if any(
            not steps[i].names and steps[i].reads[0][0] == "v" and steps[i].reads[0] not in made
            for i in group
        ):
            continue  # it would write over what was made before it
        count += 1
        for i in group:
            steps[i] = replace(steps[i], regions=(*steps[i].regions, count))
    return steps

"""The smallest program, and the plainest setting, that still has a fault: delta debugging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuzz._grammar import runs_eagerly
from fuzz._judge import RAISED, Fault, Setting, find_fault
from fuzz._program import INPUTS, Program, Step

_Found = tuple[Program, Setting]


def shrunk(program: Program, fault: Fault) -> tuple[Program, Fault]:
    """A faulty program made smaller as long as a single change leaves it the same kind of fault.

    Args:
        program: the program.
        fault: what is wrong with it.

    Returns:
        The smallest program found, and its fault.
    """
    tried: set[_Found] = set()
    best, more = ((program, fault.setting), fault), True
    while more:
        more = False
        for smaller in _smaller(*best[0]):
            if smaller in tried or not runs_eagerly(smaller[0]):
                continue
            tried.add(smaller)
            found = find_fault(smaller[0], _settings(smaller[1], fault))
            if found is not None and found.kind == fault.kind:
                best, more = (smaller, found), True
                break
    return best[0][0], best[1]


def _settings(setting: Setting, fault: Fault) -> list[Setting]:
    """What shows the fault: that a budget raises the peak is seen only next to none."""
    return [Setting(), setting] if fault.kind == RAISED else [setting]


def _smaller(program: Program, setting: Setting) -> Iterator[_Found]:
    """Changes of a program, the largest first."""
    steps = program.steps
    size = len(steps) // 2
    while size:
        for begin in range(0, len(steps), size):
            yield without(program, range(begin, begin + size)), setting
        size //= 2
    for region in sorted({r for step in steps for r in step.regions}):
        yield _dissolved(program, region), setting
    if program.tags:
        yield replace(program, tags=()), setting
    for place in range(len(program.results)) if len(program.results) > 1 else ():
        results = program.results[:place] + program.results[place + 1 :]
        yield replace(program, results=results), setting
    for place, step in enumerate(steps):
        for simpler in _simpler(step):
            yield replace(program, steps=(*steps[:place], simpler, *steps[place + 1 :])), setting
    if setting.policy is not None:
        yield program, replace(setting, policy=None)
    if setting.solver != "auto":
        yield program, replace(setting, solver="auto")
    if setting.budget is not None:
        yield program, replace(setting, budget=None)


def without(program: Program, places: range) -> Program:
    """A program without some steps; what read one of their values reads what they read."""
    stands_for: dict[str, str] = {}
    steps = []
    for place, step in enumerate(program.steps):
        reads = tuple(stands_for.get(name, name) for name in step.reads)
        if place in places:
            stands_for |= dict.fromkeys(step.names, (*reads, "x")[0])
        else:
            steps.append(replace(step, reads=reads))
    results = dict.fromkeys(stands_for.get(name, name) for name in program.results)
    return replace(program, steps=tuple(steps), results=tuple(results))


def _dissolved(program: Program, region: int) -> Program:
    steps = (
        replace(step, regions=tuple(r for r in step.regions if r != region))
        for step in program.steps
    )
    tags = tuple(pair for pair in program.tags if pair[0] != region)
    return replace(program, steps=tuple(steps), tags=tags)


def _simpler(step: Step) -> Iterator[Step]:
    """A step that reads an input in place of a value, or is a plainer one."""
    terms = step.text.split(" + ")
    if len(terms) > 1 and len(terms) == len(step.reads):  # a loss of several ends
        for place in range(len(terms)):
            reads = step.reads[:place] + step.reads[place + 1 :]
            text = " + ".join(f"{{{i}}}.square().mean()" for i in range(len(reads)))
            yield replace(step, text=text, reads=reads)
    for place, name in enumerate(step.reads):
        if name not in INPUTS:
            for other in ("x", "y"):
                yield replace(step, reads=(*step.reads[:place], other, *step.reads[place + 1 :]))
    if len(step.names) == 1 and step.reads and step.text != "{0}.sin()":
        yield replace(step, text="{0}.sin()", reads=step.reads[:1])

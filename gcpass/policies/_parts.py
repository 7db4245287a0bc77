"""What is said of parts of the forward, ``"save"`` or ``"recompute"``, as rules on its values.

- ``"save"``: nothing in the part runs twice. What the backward reads of it is kept, or something
  that was computed from it.
- ``"recompute"``: nothing in the part is kept, as if it were checkpointed. What goes into it, and
  what others read of what it makes, is no part of its inside: that stays the optimiser's to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gcpass._problem import Phase, Problem, Rule
from gcpass.policies._regions import contradict, own_constraint, restricted

Restricted = tuple[Problem, tuple[str, ...]]  # the problem with more rules, and notes for the user

SAID = ("save", "recompute")


@dataclass(frozen=True)
class Part:
    """A part of the forward, and what is said of it.

    Attributes:
        said: ``"save"`` or ``"recompute"``.
        speaker: who says so, for reasons and notes.
        ops: the ops it is said of.
        around: the ops from which what ``ops`` make does not leave the part; they are in it.
    """

    said: str
    speaker: str
    ops: Collection[int]
    around: Collection[int]


def parted(problem: Problem, parts: Sequence[Part]) -> Restricted:
    """The problem with what is said of some parts of it; no op is in two of them."""
    read_outside = leaving(problem, parts)
    ignored: dict[str, list[str]] = {}
    result = problem
    for part in parts:
        rules = _rules(problem, part, read_outside)
        ignored.setdefault(part.speaker, []).extend(unheeded(problem, rules))
        result = restricted(result, rules, f"{part.speaker} {part.said}s it")
    return result, tuple(n for who, what in ignored.items() for n in notes_of(who, what))


def unheeded(problem: Problem, rules: dict[int, Rule]) -> list[str]:
    """The rules that the graph's own contradict: what was said of which op, and what forbids it."""
    found = []
    for op, rule in rules.items():
        own = own_constraint(problem, op)
        if own is not None and contradict(rule, own.rule):
            said = "recompute" if rule is Rule.NEVER_KEEP else "save"
            target = problem.ops[problem.maker(op)].target
            found.append(f"{said!r} for {problem.ops[op].name} ({target}): {own.reason}")
    return found


def notes_of(speaker: str, ignored: Sequence[str]) -> tuple[str, ...]:
    """What the user is told of the rules that were not followed: one sentence, or none."""
    more = f", and {len(ignored) - 1} more" if len(ignored) > 1 else ""
    return (f"{speaker} was not followed: {ignored[0]}{more}",) if ignored else ()


def _rules(problem: Problem, part: Part, leaving: Collection[int]) -> dict[int, Rule]:
    rules: dict[int, Rule] = {}
    for op in part.ops:
        if not (problem.produced[op] and problem.wanted[op]):
            continue
        made = [(s, problem.storages[s].holder) for s in problem.produced[op]]
        if part.said == "recompute":
            inside = (h for s, h in made if s not in leaving and s not in problem.output_storages)
            rules |= {h: Rule.NEVER_KEEP for h in inside if h is not None}
        elif problem.ops[op].phase is Phase.FORWARD:
            never = [h for _, h in made if h is not None and problem.ops[h].obeys(Rule.NEVER_KEEP)]
            rules |= dict.fromkeys(never or [op], Rule.NEVER_RECOMPUTE)
    return rules


def leaving(problem: Problem, parts: Sequence[Part]) -> frozenset[int]:
    """The storages that parts make and something that is not around reads in the forward."""
    part_of = {op: part for part in parts for op in part.ops}
    found: set[int] = set()
    for op in problem.forward_range:
        for read in problem.ops[op].inputs:
            for s in problem.ops[read].storages:
                part = part_of.get(problem.storages[s].producer)
                if part is not None and op not in part.around:
                    found.add(s)
    return frozenset(found)

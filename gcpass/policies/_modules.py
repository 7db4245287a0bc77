"""Rules by module path: ``{"layers.*.mlp": "recompute", "*.router": "save"}``.

A pattern is a path whose parts may be globs, and may start anywhere in a module's path:
``layers.*.mlp`` names ``model.layers.3.mlp``, with all that is inside it. ``*`` is one part. Where
patterns name modules inside each other, the innermost module's wins; where two name the same
module, the later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gcpass._errors import OptionError, did_you_mean
from gcpass._problem import Problem
from gcpass.policies._parts import SAID, Part, parted

ModuleRules = tuple[tuple[str, str], ...]  # (pattern, "save" or "recompute"), later ones stronger
_Path = tuple[str, ...]


def read_rules(value: object) -> ModuleRules:
    """Check rules as a user writes them.

    Args:
        value: a mapping of patterns to ``"save"`` or ``"recompute"``, or None.

    Raises:
        OptionError: it is no such mapping.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise OptionError(
            f"rules={value!r} must map patterns of module paths to 'save' or 'recompute', such as "
            "{'layers.*.mlp': 'recompute'}"
        )
    for pattern, said in value.items():
        if not isinstance(pattern, str) or not all(pattern.split(".")):
            raise OptionError(
                f"rules[{pattern!r}]: a pattern must be a module's path such as 'layers.*.mlp', "
                "of parts between single dots"
            )
        if said not in SAID:
            raise OptionError(
                f"rules[{pattern!r}]={said!r} is not known; {did_you_mean(str(said), SAID)}"
            )
    return tuple(value.items())


def by_module(problem: Problem, rules: ModuleRules) -> tuple[Problem, tuple[str, ...]]:
    """The problem with the rules of the modules its ops came from, and notes for the user."""
    ruling = {path: named for path in _paths(problem) if (named := _ruling(path, rules))}
    members: dict[_Path, list[int]] = {}
    around: dict[_Path, set[int]] = {module: set() for module, _ in ruling.values()}
    ruled: dict[_Path, int] = {}
    for op in problem.forward_range:
        path = _split(problem.ops[op].module)
        if path in ruling:
            module, ruled_by = ruling[path]
            members.setdefault(module, []).append(op)
            ruled[module] = ruled_by
        for length in range(len(path) + 1):
            if path[:length] in around:
                around[path[:length]].add(op)
    parts = [
        Part(rules[i][1], f"rules[{rules[i][0]!r}]", members[module], around[module])
        for module, i in ruled.items()
    ]
    return parted(problem, parts)


def unmatched(problem: Problem, rules: ModuleRules) -> dict[str, str]:
    """The patterns that name no module of the problem, each with what may have been meant."""
    paths = _paths(problem)
    found = {}
    for pattern, _ in rules:
        if not any(_named(path, pattern) for path in paths):
            folded = {re.sub(r"\d+", "*", ".".join(path[:n])) for path in paths
                      for n in range(1, len(path) + 1)}  # fmt: skip
            tails = {tail for path in folded for tail in _tails(path)}
            found[pattern] = did_you_mean(pattern, tails) if tails else "there are no modules in it"
    return found


def _tails(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[i:]) for i in range(len(parts)) if parts[i] != "*"]


def _paths(problem: Problem) -> set[_Path]:
    modules = {problem.ops[op].module for op in problem.forward_range}
    return {_split(module) for module in modules if module}


def _split(module: str) -> _Path:
    return tuple(module.split(".")) if module else ()


def _ruling(path: _Path, rules: ModuleRules) -> tuple[_Path, int] | None:
    """The module on a path that is ruled, and the place of the rule that wins."""
    named = [(n, i) for i, (pattern, _) in enumerate(rules) if (n := _named(path, pattern))]
    if not named:
        return None
    length, rule = max(named)
    return path[:length], rule


def _named(path: _Path, pattern: str) -> int:
    """The length of the outermost module's path that a pattern names; 0 if it names none."""
    globs = pattern.split(".")
    for stop in range(len(globs), len(path) + 1):
        if all(map(fnmatchcase, path[stop - len(globs) : stop], globs)):
            return stop
    return 0

"""What a compiled graph holds while it runs, read from the code that Inductor generated for it.

Inductor writes a Python function ``call`` for each graph: it allocates every buffer, hands it to
kernels, and deletes its name after the last use. Fusion, writing over an input, reuse, and the
grouping of loops into one kernel are all decided there. Following its names, one statement after
another, gives the bytes alive at every moment of the run; nothing has to be modelled.
"""

from __future__ import annotations

import ast
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_ALIASING = frozenset({"reinterpret_tensor", "alloc_from_pool"})


@dataclass(frozen=True, eq=False)
class Storage:
    """Memory that lives and dies as one; told from others by identity."""

    nbytes: int


Storages = frozenset[Storage]
NOTHING: Storages = frozenset()


@dataclass(frozen=True)
class Buffer:
    """What Inductor knows of a buffer that its code names.

    Attributes:
        nbytes: its size.
        aliases: names of the buffers whose memory it shares, if it has none of its own.
        nodes: names of the graph's nodes that it was made for.
        itemsize: bytes of one element.
    """

    nbytes: int
    aliases: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    itemsize: int = 1


_UNKNOWN = Buffer(0)  # an integer, a stream, a constant


@dataclass(frozen=True)
class Generated:
    """The code of one graph.

    Attributes:
        source: the generated module.
        buffers: the buffers that it names.
        strides: of each output; None where it has none.
        converts_layouts: whether convolutions are laid out so that they need no copies.
    """

    source: str
    buffers: Mapping[str, Buffer]
    strides: tuple[tuple[int, ...] | None, ...]
    converts_layouts: bool


@dataclass(frozen=True)
class Run:
    """One run of a graph's code.

    Attributes:
        peak_nbytes: the most bytes alive.
        outputs: the memory behind each output.
        moments: for each buffer, the nodes it was made for, and the most alive while it was made.
    """

    peak_nbytes: int
    outputs: tuple[Storages, ...]
    moments: tuple[tuple[tuple[str, ...], int], ...]


def run(
    code: Generated,
    arguments: Sequence[Storages],
    *,
    held: Storages = NOTHING,
    workspaces: Mapping[str, int] | None = None,
) -> Run:
    """Follow the code of one graph.

    Args:
        code: the code.
        arguments: the memory behind each input; the run lets go of it after the last use.
        held: memory that others hold on to during the run.
        workspaces: bytes that the library call behind a node needs while it runs.

    Returns:
        The run. What is alive before counts: arguments and what is held.
    """
    function = next(
        node
        for node in ast.walk(ast.parse(code.source))
        if isinstance(node, ast.FunctionDef) and node.name == "call"
    )
    follower = _Follower(code.buffers, function, arguments, held, workspaces or {})
    follower.follow(function.body)
    moments = ((code.buffers[name].nodes, nbytes) for name, nbytes in follower.moments.items())
    return Run(follower.peak, follower.outputs, tuple(moments))


class _Follower:
    """Names, the storages they stand for, and the bytes alive."""

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        function: ast.FunctionDef,
        arguments: Sequence[Storages],
        held: Storages,
        workspaces: Mapping[str, int],
    ) -> None:
        self.outputs: tuple[Storages, ...] = ()
        self.peak = 0
        self.moments: dict[str, int] = {}
        self._alive = 0
        self._buffers, self._arguments, self._workspaces = buffers, arguments, workspaces
        self._parts = _parts(function)
        self._made: dict[str, Storages] = {}
        self._names: dict[str, Storages] = {}
        self._references: Counter[Storage] = Counter()
        self._hold(held)
        for storages in arguments:  # each by its caller, until its name is bound
            self._hold(storages)

    def follow(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name("args")):
                    for name, storages in zip(names, self._arguments, strict=True):
                        self._names[_id(name)] = storages
                case ast.Assign(targets=[ast.Name(name)], value=value):
                    self._assign(name, value)
                case ast.Delete(targets=targets):
                    for target in targets:
                        self._release(self._names.pop(_id(target), NOTHING))
                case ast.Return(value=ast.Tuple(elts=values) | ast.List(elts=values)):
                    self.outputs = tuple(map(self._behind, values))
                case ast.If(body=body, orelse=otherwise):
                    self.follow([*body, *otherwise])
                case ast.With(body=body) | ast.For(body=body) | ast.While(body=body):
                    self.follow(body)
                case _:
                    pass  # a call: kernels allocate nothing of their own

    def _assign(self, name: str, value: ast.expr) -> None:
        needed = 0
        if name in self._made:
            storages = self._made.pop(name)
        else:
            storages = self._behind(value) or self._make(name)
            needed = self._needed(name, value, storages)
        self._hold(storages)
        self.peak = max(self.peak, needed)
        if name in self._buffers:
            self.moments[name] = max(self._alive, needed)
        self._release(self._names.get(name, NOTHING))
        self._names[name] = storages

    def _behind(self, value: ast.expr) -> Storages:
        """The storages that an expression gives access to, if they exist already."""
        match value:
            case ast.Name(name):
                return self._names.get(name, NOTHING)
            case ast.Call(func=ast.Name(function), args=[first, *_]) if function in _ALIASING:
                return self._behind(first)
            case ast.Call(func=ast.Attribute(value=owner)):  # a method of a tensor: a view of it
                return self._behind(owner)
            case ast.Subscript(value=owner):
                return self._behind(owner)
            case _:
                return NOTHING

    def _make(self, name: str) -> Storages:
        """New memory for a buffer, and for the parts of one that stands for several."""
        buffer = self._buffers.get(name, _UNKNOWN)
        if buffer.aliases:
            return NOTHING.union(*(self._names.get(a, NOTHING) for a in buffer.aliases))
        if name in self._parts:
            self._made |= {part: self._make(part) for part in self._parts[name]}
            return NOTHING.union(*(self._made[part] for part in self._parts[name]))
        return frozenset({Storage(buffer.nbytes)}) if buffer.nbytes else NOTHING

    def _needed(self, name: str, value: ast.expr, results: Storages) -> int:
        """What is alive while a library call runs that has a workspace, or makes dense copies."""
        if not isinstance(value, ast.Call) or "empty_strided" in ast.unparse(value.func):
            return 0
        nodes = self._buffers.get(name, _UNKNOWN).nodes
        needed = max((self._workspaces.get(node, 0) for node in nodes), default=0)
        if "convolution" in ast.unparse(value.func):
            needed += sum(map(self._copy_nbytes, value.args))
        if not needed:
            return 0
        return needed + self._alive + sum(s.nbytes for s in results if not self._references[s])

    def _copy_nbytes(self, argument: ast.expr) -> int:
        """Bytes of the dense copy that a convolution makes of a view with gaps between elements."""
        match argument:
            case ast.Call(
                func=ast.Name("reinterpret_tensor"), args=[ast.Name(name), shape, steps, _]
            ):
                sizes, strides = _integers(shape), _integers(steps)
                if sizes and strides and not _is_dense(sizes, strides):
                    return math.prod(sizes) * self._buffers.get(name, _UNKNOWN).itemsize
        return 0

    def _hold(self, storages: Storages) -> None:
        for storage in storages:
            if not self._references[storage]:
                self._alive += storage.nbytes
            self._references[storage] += 1
        self.peak = max(self.peak, self._alive)

    def _release(self, storages: Storages) -> None:
        for storage in storages:
            self._references[storage] -= 1
            if not self._references[storage]:
                self._alive -= storage.nbytes


def _parts(function: ast.FunctionDef) -> dict[str, list[str]]:
    """For each name whose items get names of their own, those names: ``buf2 = buf1[0]``."""
    parts: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(part)], value=ast.Subscript() as value):
                root: ast.expr = value
                while isinstance(root, ast.Subscript):
                    root = root.value
                if isinstance(root, ast.Name):
                    parts[root.id].append(part)
    return dict(parts)


def _integers(sequence: ast.expr) -> tuple[int, ...]:
    """The integers that a tuple spells out; none if one of them is a symbol."""
    values = sequence.elts if isinstance(sequence, ast.Tuple) else []
    numbers = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, int)]
    return tuple(numbers) if len(numbers) == len(values) else ()


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _id(node: ast.expr) -> str:
    assert isinstance(node, ast.Name), ast.dump(node)
    return node.id

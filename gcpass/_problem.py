"""The planning problem: a joint forward/backward graph reduced to what a plan depends on.

An `Op` is one node of the joint graph; its value lives in zero or more `Storage`s, and storages,
not ops, are what memory is made of: a view shares the storage of what it views. Ops are listed in
the order they run: inputs, then everything that needs no tangent (the *forward range*), then the
backward.

A plan is a set of storages to keep, named by the op that holds each of them (`Storage.holder`).
What the backward reads and is not kept is recomputed from what is.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property


class Phase(enum.Enum):
    """When an op runs."""

    INPUT = "input"  # alive before the call: parameters, buffers, arguments, seeds
    FORWARD = "forward"  # the forward's outputs need it
    EITHER = "either"  # needs no tangent, and only the backward reads it: runs once, on either side
    AGAIN = "again"  # a further run of an op that the backward needs more than once
    BACKWARD = "backward"  # needs a tangent, or must run in the backward


class Kernel(enum.Enum):
    """How a fusing compiler runs an op."""

    EXTERN = "extern"  # its own kernel: inputs and outputs get buffers
    POINTWISE = "pointwise"  # computed inside the kernels that read it
    REDUCTION = (
        "reduction"  # a loop that computes its pointwise inputs on the way, and gets a buffer
    )
    JOIN = "join"  # the same, and an input that has a buffer has it inside this one


class Rule(enum.Enum):
    """What a constraint forbids."""

    NEVER_RECOMPUTE = "never recompute"  # it runs once; keep it, or something computed from it
    NEVER_KEEP = "never keep"  # it is recomputed whenever the backward wants it
    KEEP = "keep"  # kept whether or not the backward reads it directly


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule on one op, with its reason in words a user can read."""

    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class Op:
    """One node of the joint graph.

    Attributes:
        name: the node's name in the joint graph.
        target: what it calls, such as ``"aten.mm"``.
        phase: when it runs.
        inputs: indices of the ops it reads.
        storages: indices of the storages its value lives in; the ones it does not itself produce
            are viewed.
        picoseconds: time of one run.
        traffic_picoseconds: time to write its value to memory once and to read it back once.
        workspace_nbytes: bytes alive only while it runs, beyond inputs and outputs.
        kernel: how a fusing compiler runs it.
        constraint: a rule on it, or None.
        preference: the rule that the user would rather have, or None.
        module: the user's module it came from, such as ``"layers.3.mlp"``.
        source: the user's line it came from, such as ``"model.py:41"``.
    """

    name: str
    target: str
    phase: Phase
    inputs: tuple[int, ...]
    storages: tuple[int, ...]
    picoseconds: int = 0
    traffic_picoseconds: int = 0
    workspace_nbytes: int = 0
    kernel: Kernel = Kernel.EXTERN
    constraint: Constraint | None = None
    preference: Constraint | None = None
    module: str = ""
    source: str = ""

    @property
    def runs_twice(self) -> bool:
        """Whether a run of it in the backward is a recomputation."""
        return self.phase in (Phase.FORWARD, Phase.AGAIN)

    @property
    def fuses(self) -> bool:
        """Whether a fusing compiler can compute it inside the kernel that reads it."""
        return self.kernel is Kernel.POINTWISE

    @property
    def fuses_inputs(self) -> bool:
        """Whether a fusing compiler can compute its pointwise inputs inside its kernel."""
        return self.kernel is not Kernel.EXTERN

    def obeys(self, rule: Rule) -> bool:
        return self.constraint is not None and self.constraint.rule is rule


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of device memory.

    Attributes:
        nbytes: its size.
        producer: the op that allocates it.
        holder: the op that stands for it in a plan: the producer, or for one item of a tuple the
            ``getitem`` that takes it out; None if it cannot be kept.
    """

    nbytes: int
    producer: int
    holder: int | None


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on what is saved of a part of the forward.

    Attributes:
        name: of the part.
        ops: what makes the values that count.
        nbytes: how much of them may be saved.
    """

    name: str
    ops: frozenset[int]
    nbytes: int


@dataclass(frozen=True)
class Problem:
    """A joint graph, ready to be planned.

    Attributes:
        ops: in running order; every op comes after its inputs.
        storages: what the ops' values live in.
        outputs: ops whose values the forward returns to the user.
        gradients: ops whose values the backward returns.
        codegen: ``"eager"`` (every value gets a buffer) or ``"inductor"`` (fused values do not).
        hardware: the cost model that the ops' times are of.
        bounds: on what is saved of its parts; the rules on its ops keep them.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    outputs: tuple[int, ...]
    gradients: tuple[int, ...]
    codegen: str = "eager"
    hardware: str = "reference"
    bounds: tuple[Bound, ...] = ()

    def __post_init__(self) -> None:
        for index, op in enumerate(self.ops):
            if any(read >= index for read in op.inputs):
                raise ValueError(f"op {op.name!r} reads an op that runs after it")

    @cached_property
    def preferring(self) -> Problem | None:
        """The problem with every preference as a rule; None if nobody prefers anything."""
        if all(op.preference is None for op in self.ops):
            return None
        ops = (replace(op, constraint=op.preference or op.constraint) for op in self.ops)
        return replace(self, ops=tuple(ops))

    @cached_property
    def forward_range(self) -> range:
        """Indices of the ops that need no tangent: FORWARD and EITHER."""
        start = next((i for i, op in enumerate(self.ops) if op.phase is not Phase.INPUT), 0)
        stop = next(
            (i for i, op in enumerate(self.ops) if op.phase is Phase.BACKWARD), len(self.ops)
        )
        return range(start, max(start, stop))

    @cached_property
    def backward_range(self) -> range:
        """Indices of the ops that run in the backward whatever the plan."""
        return range(self.forward_range.stop, len(self.ops))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that read it."""
        readers: list[list[int]] = [[] for _ in self.ops]
        for index, op in enumerate(self.ops):
            for read in dict.fromkeys(op.inputs):
                readers[read].append(index)
        return tuple(map(tuple, readers))

    @cached_property
    def produced(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the storages it allocates."""
        produced: list[list[int]] = [[] for _ in self.ops]
        for index, storage in enumerate(self.storages):
            produced[storage.producer].append(index)
        return tuple(map(tuple, produced))

    @cached_property
    def kept_storage(self) -> dict[int, int]:
        """For each op that can be kept, the storage that keeping it keeps."""
        return {
            s.holder: index
            for index, s in enumerate(self.storages)
            if s.holder is not None
            and s.holder in self.forward_range
            and not self.ops[s.holder].obeys(Rule.NEVER_KEEP)
        }

    @cached_property
    def output_storages(self) -> frozenset[int]:
        """Storages alive from the forward to the end of the step because the user holds them."""
        return frozenset(
            s
            for output in self.outputs
            for s in self.ops[output].storages
            if self.ops[self.storages[s].producer].phase is not Phase.INPUT
        )

    @cached_property
    def forward_picoseconds(self) -> int:
        """Time of the forward alone: the 100% of every recompute ratio."""
        return sum(op.picoseconds for op in self.ops if op.phase is Phase.FORWARD)

    @cached_property
    def wanted(self) -> tuple[bool, ...]:
        """For each op, whether the backward needs its value directly or through other ops."""
        wanted = [False] * len(self.ops)
        for index in self.gradients:
            wanted[index] = True
        for index in self.backward_range:
            for read in self.ops[index].inputs:
                wanted[read] = True
        for index in reversed(self.forward_range):
            if wanted[index]:
                for read in self.ops[index].inputs:
                    wanted[read] = True
        return tuple(wanted)

    def demanded_in(self, ops: range) -> tuple[int, ...]:
        """Ops of a stretch of the forward whose values the backward itself reads or returns."""
        demanded = self._demanded
        return demanded[bisect_left(demanded, ops.start) : bisect_left(demanded, ops.stop)]

    @cached_property
    def _demanded(self) -> tuple[int, ...]:
        gradients, backward = set(self.gradients), self.backward_range.start
        return tuple(
            op
            for op in self.forward_range
            if op in gradients or (self.readers[op] and self.readers[op][-1] >= backward)
        )

    @cached_property
    def last_readers(self) -> tuple[int, ...]:
        """For each storage, the last op whose recomputation reads it; -1 if none does."""
        last = [-1] * len(self.storages)
        for op in self.forward_range:
            if self.wanted[op]:
                for read in self.ops[op].inputs:
                    for s in self.ops[read].storages:
                        last[s] = op
        return tuple(last)

    def maker(self, op: int) -> int:
        """The op that makes the value: of an item of a tuple, the one that makes the tuple."""
        held = (self.storages[s] for s in self.ops[op].storages)
        return next((s.producer for s in held if s.holder == op), op)

    def is_input(self, op: int) -> bool:
        """Whether the backward can read it for nothing: alive before the call and not mutated."""
        return op < self.forward_range.start and self.ops[op].constraint is None

    def is_view(self, op: int) -> bool:
        """Whether the op allocates nothing: its value lives in storages of its inputs."""
        return bool(self.ops[op].storages) and not self.produced[op]

    def keep_nbytes(self, op: int) -> int:
        """Bytes that keeping ``op`` adds: nothing if the caller holds its storage anyway."""
        storage = self.kept_storage[op]
        return 0 if storage in self.output_storages else self.storages[storage].nbytes

    def keep_picoseconds(self, op: int) -> int:
        """What keeping ``op`` adds: a write and a read, if fusion would give it no buffer."""
        return self._keep_picoseconds.get(op, 0)

    @cached_property
    def _keep_picoseconds(self) -> dict[int, int]:
        return {op: self._traffic_picoseconds(op) for op in self.kept_storage}

    def _traffic_picoseconds(self, op: int) -> int:
        if self.codegen != "inductor" or not self.ops[op].fuses or op in self._output_set:
            return 0
        readers = [r for r in self.readers[op] if self.ops[r].phase is Phase.FORWARD]
        fused = all(self.ops[r].fuses_inputs for r in readers)
        return self.ops[op].traffic_picoseconds if fused else 0

    @cached_property
    def _output_set(self) -> frozenset[int]:
        return frozenset(self.outputs)

    def recompute_picoseconds(self, op: int) -> int:
        """What running ``op`` in the backward adds: nothing if it would run only there anyway."""
        return self.ops[op].picoseconds if self.ops[op].runs_twice else 0

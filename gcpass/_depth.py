"""A deep model's problem from a shallow one's: alike layers are traced once and repeated.

Tracing takes time in proportion to depth, and the layers of a stack are alike. Take the problem of
a model of n layers. Each of its three sections (inputs, forward, backward) holds a stretch that
repeats itself with some period, layer by layer; cut into *windows* of one period, every op of the
stretch has a layer, and a place in its window. One window in the middle is repeated c times:

    inputs, forward     ... w-1  w  w+1 ...   becomes   ... w-1  w  w'  w''  w+1 ...
    backward            ... w+1  w  w-1 ...   becomes   ... w+1  w'' w' w  w-1 ...

(What the backward makes of inputs alone, as 4-bit weights dequantised again, stands at the end of
the forward in the backward's order: a section of its own.)

Where an op reads one of its own or of a neighbouring layer, its copy reads that of the copy's layer
or of its neighbour; what it reads of anywhere else is the same for all layers.

Whether that is what tracing a deeper model would give is not taken on trust: `extender` is given
two real problems, of n and n + 1 layers, and compares the second, op for op, with the first made
one layer deeper. Making it c layers deeper repeats that step c times: so it is exact, or refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from gcpass._problem import Op, Phase, Problem, Storage

_NUMBER = re.compile(r"\.(\d+)")

Extend = Callable[[Problem, int], Problem]


@dataclass(frozen=True)
class _Section:
    """A range of ops, and where it repeats itself.

    Attributes:
        ops: its range.
        start: the first op of the first window.
        period: ops of a window.
        count: how many windows there are.
    """

    ops: range
    start: int
    period: int
    count: int

    def window(self, op: int) -> int | None:
        number = (op - self.start) // self.period
        return number if op >= self.start and number < self.count else None


def extender(small: Problem, larger: Problem) -> Extend | None:
    """How to make problems like ``small`` deeper; None if it cannot be done exactly.

    Args:
        small: of a model of n layers.
        larger: of the same model with n + 1 layers.

    Returns:
        A function of a problem whose ops are wired as those of ``small``, and of a number of layers
        to add.
    """
    pairs = tuple(zip(_sections(small), _sections(larger), strict=True))
    periods = tuple(len(b) - len(a) for a, b in pairs)
    if min(periods) < 0 or not all(periods[i] for i in (0, 1, 3)):
        return None
    layers = _Layers.find(small, periods)
    if layers is None or not alike(layers.deeper(small, 1), larger):
        return None
    wiring = wiring_of(small)

    def extend(problem: Problem, more: int) -> Problem:
        if wiring_of(problem) != wiring:
            raise ValueError("the problem is wired differently")
        own = _Layers.find(problem, periods)
        if own is None:
            raise ValueError("the problem's layers are not alike")
        return own.deeper(problem, more)

    return extend


def alike(one: Problem, other: Problem) -> bool:
    """Whether two problems differ in nothing but names."""
    return (
        [nameless(op) for op in one.ops] == [nameless(op) for op in other.ops]
        and one.storages == other.storages
        and set(one.outputs) == set(other.outputs)
        and set(one.gradients) == set(other.gradients)
        and replace(one, ops=(), storages=(), outputs=(), gradients=())
        == replace(other, ops=(), storages=(), outputs=(), gradients=())
    )


def nameless(op: Op) -> Op:
    """All of an op but what it is called and where it came from."""
    return replace(op, name="", module="", source="")


def wiring_of(problem: Problem) -> int:
    """Equal for problems whose ops call the same and read the same."""
    return hash(tuple((op.target, op.phase, op.inputs, op.storages) for op in problem.ops))


def _sections(problem: Problem) -> tuple[range, range, range, range]:
    """Inputs; the forward; what only the backward reads, after it; the backward."""
    forward = problem.forward_range
    last = max((op for op in forward if problem.ops[op].phase is Phase.FORWARD), default=-1)
    own, tail = range(forward.start, last + 1), range(last + 1, forward.stop)
    return range(forward.start), own, tail, problem.backward_range


@dataclass(frozen=True)
class _Layers:
    """The windows of the sections, and which layer each is.

    The layer of a window is its number in the forward; of the inputs, that plus a constant, for
    layers read their parameters in turn; of the backward, and of what stands after the forward
    for it, a constant minus that.
    """

    inputs: _Section
    forward: _Section
    tail: _Section
    backward: _Section
    inputs_layer: int
    tail_layer: int
    backward_layer: int
    repeated: int

    @classmethod
    def find(cls, problem: Problem, periods: tuple[int, ...]) -> _Layers | None:
        found = [
            _find_section(problem, ops, period)
            for ops, period in zip(_sections(problem), periods, strict=True)
        ]
        if any(section is None for section in found):
            return None
        inputs, forward, tail, backward = found
        assert inputs is not None
        assert tail is not None
        assert forward is not None
        assert backward is not None
        shifts, sums = Counter[int](), Counter[int]()
        for op in (*forward.ops, *backward.ops):
            reader, own = forward.window(op), backward.window(op)
            for read in problem.ops[op].inputs:
                window = inputs.window(read)
                if reader is not None and window is not None:
                    shifts[reader - window] += 1
                window = forward.window(read)
                if own is not None and window is not None:
                    sums[own + window] += 1
        if not shifts or not sums:
            return None
        shift, total = shifts.most_common(1)[0][0], sums.most_common(1)[0][0]
        ahead = Counter(
            shift + window + own
            for op in tail.ops
            for window in map(inputs.window, problem.ops[op].inputs)
            if window is not None and (own := tail.window(op)) is not None
        )
        first = ahead.most_common(1)[0][0] if ahead else 0
        low = max(shift, 0, total - backward.count + 1)
        high = min(inputs.count - 1 + shift, forward.count - 1, total)
        if tail.count:
            low, high = max(low, first - tail.count + 1), min(high, first)
        if high - low < 2:  # no layer with two neighbours
            return None
        return cls(inputs, forward, tail, backward, shift, first, total, (low + high) // 2)

    def layer(self, op: int) -> int | None:
        """The layer that an op belongs to; None outside the windows."""
        if op in self.forward.ops:
            return self.forward.window(op)
        for section, first in (
            (self.backward, self.backward_layer),
            (self.tail, self.tail_layer),
        ):
            if op in section.ops:
                window = section.window(op)
                return None if window is None else first - window
        window = self.inputs.window(op)
        return None if window is None else self.inputs_layer + window

    def deeper(self, problem: Problem, more: int) -> Problem:
        """The problem with the repeated layer ``more`` times more."""
        return _Deeper(problem, self, more).build()


def _find_section(problem: Problem, ops: range, period: int) -> _Section | None:
    """The longest stretch of a section that looks as it did one period before."""
    if not period:
        return _Section(ops, ops.start, 1, 0)
    looks = [_look(problem, op) for op in ops]
    best, length = 0, 0
    run = 0
    for place in range(len(looks) - period):
        run = run + 1 if looks[place] == looks[place + period] else 0
        if run > length:
            best, length = place - run + 1, run
    if not length:
        return None
    return _Section(ops, ops.start + best, period, length // period + 1)


def _look(problem: Problem, index: int) -> tuple[object, ...]:
    """All of an op but its name and what it reads."""
    op = problem.ops[index]
    sizes = tuple(problem.storages[s].nbytes for s in problem.produced[index])
    return (
        op.target,
        op.phase,
        sizes,
        op.picoseconds,
        op.traffic_picoseconds,
        op.workspace_nbytes,
        op.kernel,
        op.constraint,
        len(op.inputs),
        len(op.storages),
    )


Placed = tuple[int, int | None]  # an op of the given problem, and its layer in the deeper one


class _Deeper:
    """Lays out the ops of the deeper problem and wires them."""

    def __init__(self, problem: Problem, layers: _Layers, more: int) -> None:
        self._problem, self._layers, self._more = problem, layers, more
        self._order = list(self._lay_out())
        self._index = {placed: i for i, placed in enumerate(self._order)}

    def build(self) -> Problem:
        problem = self._problem
        ops: list[Op] = []
        storages: list[Storage] = []
        made: dict[tuple[Placed, int], int] = {}
        for index, placed in enumerate(self._order):
            op = problem.ops[placed[0]]
            reads = [self._read(placed, read) for read in op.inputs]
            seen = {
                s: mine
                for r, read in zip(op.inputs, reads, strict=True)
                for s, mine in zip(problem.ops[r].storages, ops[read].storages, strict=True)
            }
            for s in problem.produced[placed[0]]:
                seen[s] = made[placed, s] = len(storages)
                storages.append(Storage(problem.storages[s].nbytes, index, None))
            mine = tuple(seen[s] for s in op.storages)
            ops.append(replace(op, inputs=tuple(reads), storages=mine, **self._names(placed)))
        for (placed, s), mine in made.items():
            holder = problem.storages[s].holder
            if holder is not None:
                storages[mine] = replace(storages[mine], holder=self._read(placed, holder))
        return replace(
            problem,
            ops=tuple(ops),
            storages=tuple(storages),
            outputs=self._everywhere(problem.outputs),
            gradients=self._everywhere(problem.gradients),
        )

    def _lay_out(self) -> Iterable[Placed]:
        layers, repeated = self._layers, self._layers.repeated
        for section in (layers.inputs, layers.forward, layers.tail, layers.backward):
            if not section.count:
                yield from ((op, None) for op in section.ops)
                continue
            backward = section in (layers.tail, layers.backward)
            # Copies come after the window they repeat; in the backward, before it.
            at = next(
                op
                for op in section.ops
                if layers.layer(op) == (repeated if backward else repeated + 1)
            )
            window = [op for op in section.ops if layers.layer(op) == repeated]
            numbers = range(repeated + 1, repeated + self._more + 1)
            for op in range(section.ops.start, at):
                yield op, self._placed_layer(op)
            for number in reversed(numbers) if backward else numbers:
                yield from ((op, number) for op in window)
            for op in range(at, section.ops.stop):
                yield op, self._placed_layer(op)

    def _placed_layer(self, op: int) -> int | None:
        layer = self._layers.layer(op)
        moves = layer is not None and layer > self._layers.repeated
        return layer + self._more if moves and layer is not None else layer

    def _read(self, reader: Placed, read: int) -> int:
        """Where what an op reads is in the deeper problem."""
        layers, repeated = self._layers, self._layers.repeated
        own, other = layers.layer(reader[0]), layers.layer(read)
        if own is None or other is None or abs(other - own) > 1 or reader[1] is None:
            return self._index[read, self._placed_layer(read)]
        number = reader[1] + other - own  # in the deeper problem
        if number <= repeated:
            template = number
        elif number > repeated + self._more:
            template = number - self._more
        else:
            template = repeated
        return self._index[self._moved(read, template - other), number]

    def _moved(self, op: int, windows: int) -> int:
        """The op at the same place of its window, so many layers later."""
        for section, sign in (
            (self._layers.inputs, 1),
            (self._layers.tail, -1),
            (self._layers.forward, 1),
            (self._layers.backward, -1),
        ):
            if op in section.ops:
                return op + sign * windows * section.period
        raise AssertionError(op)

    def _everywhere(self, ops: Iterable[int]) -> tuple[int, ...]:
        """Where the given ops are, and their copies."""
        wanted = set(ops)
        return tuple(i for i, (op, _) in enumerate(self._order) if op in wanted)

    def _names(self, placed: Placed) -> dict[str, str]:
        """The name of a copy, unlike any other, and the module of its layer."""
        op, layer, own = self._problem.ops[placed[0]], placed[1], self._layers.layer(placed[0])
        number = _NUMBER.search(op.module)
        if layer is None or own is None:  # of the layers at the ends, the later ones move
            moves = number is not None and int(number[1]) > self._module_number
            by, is_copy = self._more if moves else 0, False
        else:
            by, is_copy = layer - own, own == self._layers.repeated < layer
        if not by:
            return {}
        module = _NUMBER.sub(lambda found: f".{int(found[1]) + by}", op.module, count=1)
        return {"module": module} | ({"name": f"{op.name}_layer{layer}"} if is_copy else {})

    @cached_property
    def _module_number(self) -> int:
        """The number that the modules of the repeated layer have."""
        found = Counter[int]()
        for op in self._layers.forward.ops:
            number = _NUMBER.search(self._problem.ops[op].module)
            if number is not None and self._layers.layer(op) == self._layers.repeated:
                found[int(number[1])] += 1
        return found.most_common(1)[0][0] if found else 0

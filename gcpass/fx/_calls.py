"""Which calls of the graphs that share a budget are alive, and what a step of theirs looks like.

A *call* begins with a graph's forward and ends with its backward, or when autograd forgets it. A
step is what lies between two times at which no call is alive. A hook of autograd tells when a
backward begins; it is over when the next one begins, or autograd is done. (A hook after it would be
shown the gradients, and what refers to a gradient keeps autograd from handing it on uncopied.) A
forward that autograd does not record (inference) is no call, nor does one wait whose tensors the
user's own saved-tensor hooks take away (`torch.utils.checkpoint`). A call that many backwards of
others pass by (a loss that is kept, and never derived) is given up, or no step would ever be over.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gcpass._evaluate import Use
from gcpass._shared import Instant
from gcpass.fx import _compat

_KEY = "gcpass"  # of the call among an autograd node's metadata
_NODE = "CompiledFunctionBackward"
_LOOKED_AT = 16  # autograd nodes between two graphs, at most, until the next graph is found
_PATIENCE = 64  # runs of autograd, until a call that none of them reached is given up

Step = tuple[Instant, ...]


class Call:
    """A forward whose backward is still to come; dropped with its autograd node."""

    __slots__ = ("__weakref__", "_calls", "graph", "inputs", "is_alive", "sources", "waits")

    def __init__(
        self,
        calls: Calls,
        graph: str,
        waits: bool,
        inputs: dict[int, int],
        sources: list[tuple[Call | int, int]],
    ) -> None:
        self._calls, self.graph, self.waits = calls, graph, waits
        self.inputs = inputs  # bytes by address: made in this step outside the graphs
        self.sources = sources  # calls and (by their ids) leaves; bytes of the gradient for each
        self.is_alive = True

    def __del__(self) -> None:
        self._calls.release(self)


class Calls:
    """The calls of one group of graphs.

    Args:
        on_step: a method that is called with each step, when its last backward is over; its object
            is not kept alive.
    """

    def __init__(self, on_step: Callable[[Step], None]) -> None:
        self._on_step = weakref.WeakMethod(on_step)
        self._instants: list[Instant] = []
        self._is_whole = True  # whether the instants are all of this step
        self._runs = 0  # of autograd
        self._begun: dict[int, tuple[int, weakref.ref[Call]]] = {}  # those alive, oldest first
        self._running: weakref.ref[Call] | None = None  # in its backward
        self.waiting: Counter[str] = Counter()  # of those alive, the ones that hold what they saved
        self._inputs: dict[int, int] = {}
        self._leaves: dict[int, int] = {}  # bytes of gradients by leaf
        self._handed: dict[int, int] = {}  # bytes of gradients by the call that will read them

    @property
    def fixed_nbytes(self) -> int:
        """What is alive whatever the plans are."""
        parts = self._inputs, self._leaves, self._handed
        return sum(sum(part.values()) for part in parts)

    def ran_forward(self, graph: str, arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Note a forward that has just run.

        Returns:
            Its autograd node; None if autograd does not record it.
        """
        node = _node_of(arguments, outputs)
        if node is None:
            return None
        if not self._begun:
            self._end()
        waits = not _compat.saves_elsewhere()
        fresh = dict(_made_outside(arguments, self._inputs)) if waits else {}
        self._inputs.update(fresh)
        self._instants.append(self._instant(graph, in_backward=False))
        if waits:
            self.waiting[graph] += 1
        call = Call(self, graph, waits, fresh, list(_sources(node)))
        self._begun[id(call)] = self._runs, weakref.ref(call)
        node.metadata[_KEY] = call
        node.register_prehook(lambda _: self._begins(call))
        return node

    def release(self, call: Call) -> None:
        """A call holds nothing any more."""
        if not call.is_alive:
            return
        call.is_alive = False
        del self._begun[id(call)]
        if call.waits:
            self.waiting = self.waiting - Counter({call.graph: 1})  # drops zeros
        for address in call.inputs:
            self._inputs.pop(address, None)

    def _give_up(self) -> None:
        """Count no more on calls that no backward has reached for long."""
        for begun, reference in list(self._begun.values()):
            if begun + _PATIENCE >= self._runs:
                break
            call = reference()
            if call is not None:
                self.release(call)
                self._instants.clear()
                self._is_whole = False

    def _begins(self, call: Call) -> None:
        if self._running is None:
            self._runs += 1
            self._give_up()
        self._finish()
        self._running = weakref.ref(call)
        _compat.when_autograd_is_done(self._finish)
        self._handed.pop(id(call), None)
        self._instants.append(self._instant(call.graph, in_backward=True, itself=call))

    def _finish(self) -> None:
        """The backward that began last is over, if there is one."""
        call = self._running() if self._running is not None else None
        self._running = None
        if call is None:
            return
        self.release(call)
        if not self._begun:
            self._end()
            return
        for source, nbytes in call.sources:
            if isinstance(source, Call):
                self._handed[id(source)] = self._handed.get(id(source), 0) + nbytes
            else:
                self._leaves[source] = nbytes

    def _instant(self, graph: str, *, in_backward: bool, itself: Call | None = None) -> Instant:
        waiting = self.waiting
        if itself is not None and itself.is_alive and itself.waits:
            waiting = waiting - Counter({graph: 1})
        return Instant(graph, in_backward, tuple(sorted(waiting.items())), self.fixed_nbytes)

    def _end(self) -> None:
        step, self._instants = tuple(self._instants), []
        is_whole, self._is_whole = self._is_whole, True
        self._inputs.clear()
        self._leaves.clear()
        self._handed.clear()
        on_step = self._on_step()
        if on_step is not None and is_whole and any(instant.in_backward for instant in step):
            on_step(step)


def measured_use(node: Any, arguments: Sequence[Any], outputs: Sequence[Any]) -> Use:
    """The memory of a graph that nobody planned: what it saved, and at least what it computes."""
    given = {t.data_ptr() for t in _plain(arguments)}
    made = {t.data_ptr(): t.nbytes for t in _plain([*outputs, *node.saved_tensors])}
    held = sum(nbytes for address, nbytes in made.items() if address not in given)
    gradients = sum(t.nbytes for t in _plain([*arguments, *outputs]) if t.requires_grad)
    return Use(held, held, held + gradients)


def _node_of(arguments: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """The autograd node of a compiled forward; an output may be a view of what it made."""
    before = {a.grad_fn for a in arguments if isinstance(a, torch.Tensor)}
    for output in outputs:
        node: Any = output.grad_fn if isinstance(output, torch.Tensor) else None
        for _ in range(2):
            if node is None or node in before:
                break
            if node.name() == _NODE and _KEY not in node.metadata:
                return node
            node = node.next_functions[0][0] if node.next_functions else None
    return None


def _sources(node: Any) -> Iterator[tuple[Call | int, int]]:
    """Where the gradients of the inputs of a call stay, and their bytes."""
    for before, place in node.next_functions:
        source = _source(before)
        if source is not None:
            yield source, _compat.gradient_nbytes(before, place)


def _source(node: Any) -> Call | int | None:
    """Where the gradient of an input stays: with another call, or a leaf that has none yet."""
    if node is not None and hasattr(node, "variable"):
        return id(node.variable) if node.variable.grad is None else None
    stack = [node]
    for _ in range(_LOOKED_AT):
        if not stack:
            break
        node = stack.pop(0)
        if node is None:
            continue
        call = node.metadata.get(_KEY)
        if call is not None:
            return call
        stack += [following for following, _ in node.next_functions]
    return None


def _made_outside(arguments: Sequence[Any], known: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of the inputs that code outside the graphs computed in this step."""
    for tensor in _plain(arguments):
        node: Any = tensor.grad_fn
        if node is not None and _KEY not in node.metadata and tensor.data_ptr() not in known:
            yield tensor.data_ptr(), tensor.nbytes


def _plain(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors that have memory of their own kind; subclasses may have none."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return (v for v in values if type(v) in kinds)

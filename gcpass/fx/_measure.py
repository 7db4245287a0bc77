"""``gcpass.measure``: the real peak and the real time of a compiled training step."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from gcpass._errors import OptionError
from gcpass._plan import Plan
from gcpass.fx import _compat
from gcpass.fx._backend import compile_graph
from gcpass.fx._capture import loss_of, no_gradient
from gcpass.fx._devices import device_of, synchronize
from gcpass.fx._options import Options, check_codegen, make_request
from gcpass.policies import PolicyLike

T = TypeVar("T")
Gradients = dict[torch.Tensor, torch.Tensor]  # by leaf


@dataclass(frozen=True)
class Measurement:
    """What a compiled training step really took.

    Attributes:
        peak_bytes: most bytes of one forward and backward beyond what was alive before it.
        seconds_median: median of the step times.
        seconds_all: every step time, in order.
        predicted_peak_bytes: the plan's prediction; None if no single plan was made.
        loss: the last step's loss.
    """

    peak_bytes: int
    seconds_median: float
    seconds_all: tuple[float, ...]
    predicted_peak_bytes: int | None
    loss: float


class Step:
    """A compiled forward and backward that can be run, timed and weighed.

    Args:
        fn: returns a loss, or tensors, which are summed.
        args: its arguments.
        kwargs: its keyword arguments.
        options: the checked options; None for plain Inductor.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Options | None,
    ) -> None:
        self.plans: list[Plan] = []
        self.options = options
        self._fn, self._args, self._kwargs = fn, args, dict(kwargs or {})

        def planned(gm: Any, inputs: Any) -> Any:
            assert options is not None
            return compile_graph(gm, inputs, options, self.plans.append)

        backend = "inductor" if options is None else planned
        self._compiled = torch.compile(_own_code(fn), backend=backend, dynamic=False)
        self._leaves: list[torch.Tensor] = []
        self.loss = float("nan")

    def run(self) -> None:
        """One forward and backward, gradients dropped first."""
        self.drop_gradients()
        loss = loss_of(self._compiled(*self._args, **self._kwargs))
        if loss is None:
            raise no_gradient(self._fn)
        if not self._leaves:
            self._leaves = leaves_below(loss)
        loss.backward()
        self.loss = loss.detach()

    def settle(self) -> None:
        """Run until a step compiles nothing: graphs that share a budget are compiled again."""
        known = -1
        while known < len(self.plans):
            known = len(self.plans)
            self.run()

    def drop_gradients(self) -> None:
        drop_gradients(self._leaves)

    def take_gradients(self) -> Gradients:
        """The last step's gradients, which are dropped."""
        return take_gradients(self._leaves)

    def seconds(self) -> float:
        """Time of one step, the device's work included."""
        synchronize(self._device)
        start = time.perf_counter()
        self.run()
        synchronize(self._device)
        return time.perf_counter() - start

    def peak_bytes(self) -> int:
        """The most one step holds beyond what was alive before it."""
        self.drop_gradients()
        if self._device.type == "cuda":
            synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            self.run()
            synchronize(self._device)
            return torch.cuda.max_memory_allocated(self._device) - before
        return cpu_peak_bytes(self.run)

    @property
    def _device(self) -> torch.device:
        return device_of([*self._leaves, *_compat.tree_leaves((self._args, self._kwargs))])


def measure(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = 5,
    codegen: str = "inductor",
    memory_budget: object = None,
    policy: PolicyLike | None = None,
    rules: Mapping[str, str] | None = None,
    device: str | torch.device | None = None,
) -> Measurement:
    """Compile the training step of a callable under a plan, run it, and weigh it.

    Args:
        fn: returns a loss, or tensors, which are summed.
        args: its arguments, real tensors.
        kwargs: its keyword arguments.
        steps: how many steps are timed, after those that compile and two that do not.
        codegen: ``"inductor"`` or ``"eager"``.
        memory_budget: as for `gcpass.plan`.
        policy: as for `gcpass.plan`.
        rules: as for `gcpass.plan`.
        device: where to move ``fn`` (a module) and its tensors first; None: where they are.

    Returns:
        The measurement. On CUDA the peak is ``max_memory_allocated()`` less what was allocated
        before the step; on the CPU it is the running sum of the profiler's memory events.

    Raises:
        OptionError: an argument cannot be used.
        CaptureError: nothing in the result needs a gradient.
        InfeasibleBudget: no plan keeps the peak within the budget.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise OptionError(f"steps={steps!r} must be a whole number of at least 1")
    request = make_request(memory_budget, policy, "auto", "error", rules)
    options = Options(request=request, codegen=check_codegen(codegen))
    fn, args, kwargs = _move(fn, args, kwargs, device)
    step = Step(fn, args, kwargs, options)
    step.settle()
    peak = step.peak_bytes()
    seconds = tuple(step.seconds() for _ in range(steps))
    step.drop_gradients()
    return Measurement(
        peak_bytes=peak,
        seconds_median=statistics.median(seconds),
        seconds_all=seconds,
        predicted_peak_bytes=step.plans[0].predicted_peak_bytes if len(step.plans) == 1 else None,
        loss=float(step.loss),
    )


def _move(fn: Any, args: Any, kwargs: Any, device: Any) -> tuple[Any, Any, Any]:
    if device is None:
        return fn, args, kwargs
    if isinstance(fn, torch.nn.Module):
        fn = fn.to(device)

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return fn, _compat.tree_map(moved, tuple(args)), _compat.tree_map(moved, dict(kwargs or {}))


def _own_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` behind a code object of its own: Dynamo counts recompilations for each of those."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"step_{id(call)}")
    return call


def leaves_below(loss: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a backward from ``loss`` leaves gradients in."""
    found: list[torch.Tensor] = []
    seen: set[Any] = set()
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack.extend(following for following, _ in node.next_functions)
    return found


def rounds(items: Iterable[T], count: int, seed: int) -> Iterator[list[T]]:
    """All of ``items``, ``count`` times, in another order each time.

    What a step leaves to the next (caches, freed memory) changes its time: none shall always come
    after the same other.
    """
    items, orders = list(items), random.Random(seed)
    return (orders.sample(items, len(items)) for _ in range(count))


def take_gradients(leaves: Sequence[torch.Tensor]) -> Gradients:
    """The leaves' gradients, taken off them."""
    found = {leaf: leaf.grad for leaf in leaves if leaf.grad is not None}
    drop_gradients(leaves)
    return found


def drop_gradients(leaves: Sequence[torch.Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


def cpu_peak_bytes(run: Callable[[], object]) -> int:
    """The most that a call on the CPU holds beyond what was alive before it, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    return max(accumulate(_memory_events(profiler), initial=0))


def _memory_events(profiler: profile) -> Iterator[int]:
    """Bytes of each allocation (positive) and free (negative) that the profiler saw, in order."""
    results = profiler.profiler.kineto_results if profiler.profiler else None
    for event in results.events() if results else ():
        if event.name() == "[memory]":
            yield event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]

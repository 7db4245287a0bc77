"""A case: a small training program with a right answer, written once and run under any system.

A case is a function of a `Run`. It compiles what a user would compile (`Run.compile`), trains
(`Run.step`), and shows what must not depend on who compiled it (`Run.see`) or what must hold
whoever did (`Run.agree`). Its docstring says what the right value is, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: of its function.
        kind: the module it stands in, such as ``"mutation"``.
        body: the function.
        like_eager: whether what it sees must be eager's; False where eager draws other numbers,
            and only identities (`Run.agree`) can tell.
        dtype: torch's default data type while it runs.
        may_refuse: whether a clear error is a right answer too.
        weighs: whether the peak of its steps is measured against the promise.
        torch_fault: the part of torch, outside any partitioner, in which a failure lies; ``""``
            if there is none. Such a case is expected to fail.
    """

    name: str
    kind: str
    body: Callable[[Run], None]
    like_eager: bool
    dtype: torch.dtype
    may_refuse: bool
    weighs: bool
    torch_fault: str


CASES: list[Case] = []


def case(
    *,
    like_eager: bool = True,
    dtype: torch.dtype = torch.float64,
    may_refuse: bool = False,
    weighs: bool = True,
    torch_fault: str = "",
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Register a case; its module is its kind."""

    def register(body: Callable[[Run], None]) -> Callable[[Run], None]:
        kind = body.__module__.rpartition(".")[2].replace("_", " ")
        assert body.__doc__, f"{body.__name__} does not say what is right, and why"
        CASES.append(
            Case(body.__name__, kind, body, like_eager, dtype, may_refuse, weighs, torch_fault)
        )
        return body

    return register


@dataclass
class Run:
    """One run of a case under one system.

    Attributes:
        compiler: compiles a function, or returns it as it is: eager.
        weigh: runs a step and returns its peak in bytes; None where nothing is weighed.
        seen: what must be eager's.
        agreed: pairs that must be equal, each with its name.
        peaks: of every step that was weighed.
        kept_bounds: bytes that the plan with the smallest peak keeps at most.
        floor_bounds: bytes that the smallest peak must not exceed.
        decisions: ops that every plan must keep (True) or must not (False), by their target.
        coarse: whether low precision makes eager's values, too, right to a percent only.
    """

    compiler: Callable[..., Any]
    weigh: Callable[[Callable[[], None]], int] | None = None
    seen: list[tuple[str, Any]] = field(default_factory=list)
    agreed: list[tuple[str, Any, Any]] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    kept_bounds: list[int] = field(default_factory=list)
    floor_bounds: list[int] = field(default_factory=list)
    decisions: list[tuple[Callable[[str], bool], bool]] = field(default_factory=list)
    coarse: bool = False
    _stepped: set[int] = field(default_factory=set)

    def compile(self, fn: Any, **options: Any) -> Any:
        """``fn`` under the system; options are those of `torch.compile`."""
        return self.compiler(fn, **options)

    def see(self, name: str, value: Any) -> None:
        self.seen.append((name, snapshot(value)))

    def agree(self, name: str, got: Any, right: Any) -> None:
        self.agreed.append((name, snapshot(got), snapshot(right)))

    def keeps_at_most(self, nbytes: int) -> None:
        """The plan with the smallest peak keeps no more."""
        self.kept_bounds.append(nbytes)

    def floor_at_most(self, nbytes: int) -> None:
        """The smallest peak is no larger."""
        self.floor_bounds.append(nbytes)

    def plan_keeps(self, is_meant: Callable[[str], bool], *, every: bool) -> None:
        """Plans keep every value of the ops meant that the backward wants, or none."""
        self.decisions.append((is_meant, every))

    def step(
        self,
        fn: Callable[..., Any],
        *args: Any,
        wrt: nn.Module | Sequence[Tensor] = (),
        times: int = 2,
    ) -> Any:
        """Forward and backward of ``fn(*args)``, whose results are summed; sees and returns them.

        Gradients stay in ``wrt`` until the next step. Steps after the first of ``fn`` are weighed.
        """
        leaves = list(wrt.parameters()) if isinstance(wrt, nn.Module) else list(wrt)
        results: list[Any] = []

        def once() -> None:
            result = fn(*args)
            total(result).backward()
            results.append(snapshot(result))

        for _ in range(times):
            for leaf in leaves:
                leaf.grad = None
            results.clear()

            if self.weigh is not None and id(fn) in self._stepped:
                self.peaks.append(self.weigh(once))
            else:
                once()
            self._stepped.add(id(fn))
            self.see("result", results[0])
            self.see("gradients", [leaf.grad for leaf in leaves])
        if isinstance(wrt, nn.Module):
            self.see("buffers", dict(wrt.named_buffers()))
        return results[0]


def total(result: Any) -> Tensor:
    """The loss meant: a scalar result itself, or the sum of all that need a gradient."""
    leaves = torch.utils._pytree.tree_leaves(result)
    needing = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
    if len(needing) == 1 and needing[0].dim() == 0:
        return needing[0]
    parts = [(t * t.conj()).real.sum() if t.is_complex() else (t * t).sum() for t in needing]
    return torch.stack([p.double() for p in parts]).sum()


def snapshot(value: Any) -> Any:
    """A copy that nothing later changes."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [snapshot(v) for v in value]
    if isinstance(value, dict):
        return {k: snapshot(v) for k, v in value.items()}
    return value


def leaf(*size: int, seed: int = 0, **options: Any) -> Tensor:
    """A random leaf that wants a gradient, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, **options).requires_grad_()


def plain(*size: int, seed: int = 1, **options: Any) -> Tensor:
    """A random tensor that wants none."""
    return leaf(*size, seed=seed, **options).detach()

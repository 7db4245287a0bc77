"""``gcpass.region``: a part of a compiled forward with a memory budget or a policy of its own.

Dynamo runs `torch.fx.traceback.annotate` while it traces, and so every op that is traced inside a
region carries what its marker says, from Dynamo's graph to the joint one. Of regions inside each
other the innermost marks an op.

`region` names no module of torch: where a graph break makes Dynamo give a caller up, it would
otherwise compile `region` by itself, as whose result the annotation means nothing. So such a region
does nothing, and what is compiled inside it is planned like everything else.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

from torch import fx
from torch.compiler import assume_constant_result, is_compiling
from torch.fx import traceback
from torch.fx.traceback import annotate

from gcpass._budget import NO_BUDGET, Budget, parse_budget
from gcpass._errors import OptionError
from gcpass.fx import _compat, _meta
from gcpass.policies import Policy, PolicyLike, Region, find_region_policy

_KEY = "gcpass_region"
_TORCHS_KEY = getattr(traceback, "MEMORY_BUDGET_ANNOTATION_KEY", None)
_numbers = itertools.count()

Function = TypeVar("Function", bound=Callable[..., Any])
# The number of an entered region, its budget and its policy, in what Dynamo takes for constants.
_Mark = tuple[int, object, "str | None", Any, Any, "float | None"]


class _Region:
    """A region outside of any compilation: it does nothing, but a function can be put into it."""

    def __init__(self, memory_budget: object, policy: PolicyLike | None) -> None:
        self._memory_budget, self._policy = memory_budget, policy

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        memory_budget, policy = self._memory_budget, self._policy

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with region(memory_budget=memory_budget, policy=policy):
                return function(*args, **kwargs)

        return cast(Function, inside)


def region(*, memory_budget: object = None, policy: PolicyLike | None = None) -> _Region:
    """Give a part of a compiled forward a memory budget or a policy of its own.

    A context manager, to be made in the ``with`` statement itself, or a decorator. Outside of
    `torch.compile` with this backend it does nothing.

    Args:
        memory_budget: bound on the bytes saved of what is made in the region: ``"1GiB"``, bytes,
            or a fraction in (0, 1] of what the fastest plan saves there. The budget of the whole
            step holds all the same.
        policy: ``"save"`` (nothing in it runs twice), ``"recompute"`` (nothing inside it is saved),
            or a policy as for `gcpass.plan`, asked for the ops of the region alone.

    Returns:
        The context manager.

    Raises:
        OptionError: an argument cannot be used, or none is given.
    """
    if isinstance(policy, Policy):
        parts = (policy.name, policy.choose, policy.rule, policy.torch_budget)
    else:
        parts = (None, policy, None, None)
    bound = memory_budget
    if isinstance(memory_budget, float) and is_compiling():  # Dynamo would not take it as constant
        bound = memory_budget.as_integer_ratio()
    number = _entered(bound, *parts)
    if is_compiling():
        return cast(_Region, annotate({_KEY: (number, bound, *parts)}))
    return _Region(memory_budget, policy)


@assume_constant_result
def _entered(bound: object, name: str | None, *parts: Any) -> int:
    """A number for a region that is entered, once what its marker says has been checked."""
    try:
        budget, policy = _read((0, bound, name, *parts))
    except OptionError as error:
        raise _compat.reach_the_user(error) from None
    if policy is None and budget == NO_BUDGET:
        raise _compat.reach_the_user(
            OptionError("gcpass.region() needs a memory_budget or a policy")
        )
    return next(_numbers)


def _read(mark: _Mark) -> tuple[Budget, Policy | str | None]:
    """The budget and the policy of a mark."""
    _, bound, name, choose, rule, torch_budget = mark
    memory_budget = bound[0] / bound[1] if isinstance(bound, tuple) else bound
    where = "gcpass.region(memory_budget)"
    budget = parse_budget(memory_budget, where=where)
    if budget.auto:
        raise OptionError(f"{where}='auto': write a size such as '1GiB', or a fraction")
    policy = choose if name is None else Policy(name, choose, torch_budget, rule)
    return budget, find_region_policy(policy)


def regions_of(nodes: Sequence[fx.Node], forward: range) -> tuple[Region, ...]:
    """The regions that tracing marked.

    Args:
        nodes: of a joint graph, in running order.
        forward: the places of those that need no tangent.

    Returns:
        The regions; of one in which nothing runs, nothing.
    """
    members: dict[tuple[str, object], list[int]] = {}
    for place in forward:
        for key in filter(None, (_KEY, _TORCHS_KEY)):
            mark = _meta.annotation(nodes[place], key)
            if mark is not None:
                members.setdefault((key, mark), []).append(place)
    return tuple(
        _region(key, mark, frozenset(places), _meta.origin(nodes[places[0]])[1])
        for (key, mark), places in members.items()
    )


def _region(key: str, mark: Any, ops: frozenset[int], source: str) -> Region:
    at = f" at {source}" if source else ""
    if key == _KEY:
        return Region(f"gcpass.region{at}", ops, *_read(mark))
    # torch's fraction is of the way from the fewest bytes: 0 stands for those.
    return Region(f"torch's region{at}", ops, Budget(fraction=mark), lenient=True)


def regions_fingerprint(gm: fx.GraphModule) -> str:
    """Changes with the regions of a graph of Dynamo's, which torch's cache keys leave out."""
    said: list[object] = []
    numbers: dict[int, int] = {}
    for place, node in enumerate(_nodes(gm)):
        mark = _meta.annotation(node, _KEY)
        if mark is not None:
            budget, policy = _read(mark)
            policy = policy.fingerprint if isinstance(policy, Policy) else policy
            said.append((place, numbers.setdefault(mark[0], len(numbers)), budget, policy))
        torchs = _meta.annotation(node, _TORCHS_KEY) if _TORCHS_KEY else None
        if torchs is not None:
            said.append((place, torchs))
    return hashlib.sha256(repr(said).encode()).hexdigest() if said else ""


def forget_torchs_regions(gm: fx.GraphModule) -> None:
    """Take torch's own marks off a graph: its partitioner refuses those of a part of a graph."""
    if _TORCHS_KEY is not None:
        for node in _nodes(gm):
            _meta.forget_annotation(node, _TORCHS_KEY)


def _nodes(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph and of the bodies of its higher-order ops."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes

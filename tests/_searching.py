"""How long small graphs are searched value by value; tests of right answers need not wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from gcpass._solvers import _local

_USERS = dict(_local._OPS)
_LITTLE = dict.fromkeys(_USERS, 2_000)


@contextlib.contextmanager
def _searching(ops: Mapping[str, int]) -> Iterator[None]:
    before = dict(_local._OPS)
    _local._OPS.update(ops)
    try:
        yield
    finally:
        _local._OPS.update(before)


def searching_little() -> contextlib.AbstractContextManager[None]:
    """Whatever plan is chosen, it must be right."""
    return _searching(_LITTLE)


def searching_thoroughly() -> contextlib.AbstractContextManager[None]:
    """The search that users get, where it matters how good a plan is."""
    return _searching(_USERS)

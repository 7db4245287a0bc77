"""What every test starts from."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from _searching import searching_little, searching_thoroughly

_SLOW = Path(__file__).parent / "slow.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run what tests/slow.txt lists")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless ``--slow`` or its own name asks for it."""
    lines = _SLOW.read_text().splitlines()
    slow = [line.replace("[", "[[]") for line in lines if line and not line.startswith("#")]
    if config.args == config.getini("testpaths"):
        for pattern in slow:
            if not any(fnmatchcase(item.nodeid, pattern) for item in items):
                raise pytest.UsageError(f"{_SLOW.name} names no test by {pattern}")
    if config.getoption("--slow") or any("::" in argument for argument in config.args):
        return
    left_out = {i for i in items if any(fnmatchcase(i.nodeid, pattern) for pattern in slow)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No profile that this machine's user calibrated, and no op timed before, changes a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("GCPASS_DEBUG_DIR", str(tmp_path_factory.mktemp("debug")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _little_search() -> Iterator[None]:
    """Small graphs are searched for seconds otherwise; whatever plan is chosen must be right."""
    with searching_little():
        yield


@pytest.fixture(scope="module")
def thorough_search() -> Iterator[None]:
    """For tests of how good a plan is."""
    with searching_thoroughly():
        yield

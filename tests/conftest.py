"""What every test starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No profile that this machine's user calibrated, and no op timed before, changes a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCPASS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("GCPASS_DEBUG_DIR", str(tmp_path_factory.mktemp("debug")))
        yield

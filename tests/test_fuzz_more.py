"""The other half of the random programs."""

from __future__ import annotations

import pytest
from test_fuzz import PROGRAMS, check, one_thread  # noqa: F401  (a fixture)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", range(1, PROGRAMS, 2))
def test_a_random_program_is_right(seed: int) -> None:
    check(seed)

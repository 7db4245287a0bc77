"""Models of transformers as users train them: three optimizer steps end where plain ones do."""

from __future__ import annotations

import pytest
from _oracle import FLOOR, gcpass
from _real import MODELS, train

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", MODELS)
def test_three_steps(name: str, checkpointed: bool) -> None:
    """Losses of plain eager training, at half the memory and at the floor."""
    expected = train(name, lambda model: model)
    assert expected[-1] < expected[0]
    for budget in (0.5, FLOOR) if not checkpointed else (None,):
        system = gcpass(budget)
        with system.around():
            got = train(name, system.compiler, checkpointed=checkpointed)
        assert got == pytest.approx(expected, rel=2e-4), budget
        assert system.plans
        if checkpointed:  # honoured, and said
            notes = [note for plan in system.plans for note in plan.notes]
            assert any("checkpointing is followed" in note for note in notes), notes
            assert any(plan.recompute_seconds for plan in system.plans)

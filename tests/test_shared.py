"""One budget for several graphs: the choice against an exhaustive search."""

from __future__ import annotations

import itertools
import random

import pytest

from gcpass._evaluate import Use
from gcpass._shared import Instant, Offer, Shared


def _step(seed: int) -> tuple[dict[str, list[Offer]], dict[str, int], list[Instant]]:
    """Three graphs, called one after the other a few times; their backwards run in reverse."""
    draw = random.Random(seed)
    offers = {
        graph: [
            Offer(
                Use(draw.randint(20, 40), held := draw.randint(1, 60), held + draw.randint(5, 40)),
                draw.randint(0, 100),
            )
            for _ in range(5)
        ]
        for graph in "abc"
    }
    order = [draw.choice("abc") for _ in range(6)]
    instants = []
    for place, graph in enumerate(order):
        before = order[:place]
        waiting = tuple((g, before.count(g)) for g in sorted(set(before)))
        instants.append(Instant(graph, False, waiting))
        instants.append(Instant(graph, True, waiting, fixed_nbytes=3 * (len(order) - place)))
    return offers, {g: order.count(g) for g in "abc"}, instants


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_near_the_best_and_above_its_bound(seed: int) -> None:
    offers, calls, instants = _step(seed)
    shared = Shared(offers, calls, instants)
    every = list(itertools.product(*(range(5) for _ in offers)))
    peaks = {choice: shared.peak_nbytes(choice) for choice in every}
    for choice in random.Random(seed).sample(every, 5):
        uses = {graph: offer.use for graph, offer in shared.chosen(choice).items()}
        assert peaks[choice] == max(instant.nbytes(uses) for instant in instants)
    smallest = min(peaks.values())
    assert shared.within(smallest - 1) is None
    assert shared.peak_nbytes(shared.smallest()) == smallest
    for budget in range(smallest, max(peaks.values()) + 40, 40):
        best = min(shared.picoseconds(c) for c in every if peaks[c] <= budget)
        found = shared.within(budget)
        assert found is not None and peaks[found] <= budget
        assert shared.bound(budget) <= best + 1e-6
        assert best <= shared.picoseconds(found) <= 1.05 * best

"""One budget for several graphs of one step.

A model that was compiled in parts runs a forward and a backward for each *call* of each graph.
While one of them runs, every other call whose backward is still to come holds what its forward
handed on. So at each moment m of the step, at which the graph g(m) runs its forward or backward,

    own(m, g(m)) + sum over graphs g of waiting(m, g) held(g) + fixed(m) <= budget

where waiting(m, g) other calls of g hold something, and fixed(m) is what no plan changes: gradients
of earlier backwards, values that code outside the graphs made. What is minimised is the time that
the plans of all calls cost, sum over g of calls(g) time(g). Each graph brings some plans (`Offer`).

**One price.** Let a byte at the moment m cost p. Then every graph chooses for itself the least of

    calls(g) time(g) + p bytes(m, g),      bytes(m, g) = waiting(m, g) held(g), + own(m, g) at g(m)

and for any price the sum of these, less p (budget - fixed(m)), is at most the time of any choice
within the budget (`Shared.bound`). The price is raised until the moment fits (`_at_a_price`); where
other moments are over the budget then, the steepest trades bring them down, and what is left of the
budget is spent (`_trade`, `_spend`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gcpass._evaluate import Evaluator, Use
from gcpass._solvers import Solution, spread

_PLANS = 12  # of one graph, spread over its peaks; the corners of its hull come on top
_PRICED = 4  # moments, the fullest ones, at which a price is looked for
_HALVINGS = 40  # of the range of prices
_TRADES = 2_000

_Array = np.ndarray
Choice = tuple[int, ...]


@dataclass(frozen=True)
class Offer:
    """One plan of one graph.

    Attributes:
        use: its memory.
        picoseconds: what one call of it costs: recomputation, and keeping.
        solution: the plan; None for a graph that only has the one it runs with.
    """

    use: Use
    picoseconds: int = 0
    solution: Solution | None = None


@dataclass(frozen=True)
class Instant:
    """One forward or backward of a step.

    Attributes:
        graph: what runs.
        in_backward: whether its backward does.
        waiting: graphs whose calls wait for their backward meanwhile, and how many of each do.
        fixed_nbytes: what is alive whatever the plans are.
    """

    graph: str
    in_backward: bool
    waiting: tuple[tuple[str, int], ...] = ()
    fixed_nbytes: int = 0

    def nbytes(self, uses: Mapping[str, Use]) -> int:
        """What is alive at its fullest under the given plans."""
        own = uses[self.graph]
        most = own.backward_nbytes if self.in_backward else own.forward_nbytes
        return most + self.outside_nbytes(uses)

    def outside_nbytes(self, uses: Mapping[str, Use]) -> int:
        """What is alive of it beside the graph that runs."""
        held = sum(count * uses[graph].held_nbytes for graph, count in self.waiting)
        return held + self.fixed_nbytes


def offers(evaluator: Evaluator) -> list[Offer]:
    """Plans of one graph that may serve in a step with others, fastest first.

    The corners of the hull hold the least at their time, and others have the smallest peaks. What
    another beats in all of forward, held bytes, backward and time is left out.
    """
    made = [
        Offer(s.evaluation.use, s.evaluation.overhead_picoseconds, s)
        for s in spread(evaluator, _PLANS)
    ]
    made.sort(key=lambda o: (o.picoseconds, o.use.held_nbytes, o.use.backward_nbytes))
    useful: list[Offer] = []
    for offer in made:
        if not any(_beats(other.use, offer.use) for other in useful):
            useful.append(offer)
    return useful


def _beats(a: Use, b: Use) -> bool:
    return (
        a.forward_nbytes <= b.forward_nbytes
        and a.held_nbytes <= b.held_nbytes
        and a.backward_nbytes <= b.backward_nbytes
    )


class Shared:
    """The choice of one plan for each graph of a step.

    Args:
        offers: of each graph, fastest first.
        calls: how often each runs in a step.
        instants: of the step, or of several kinds of steps.
    """

    def __init__(
        self,
        offers: Mapping[str, Sequence[Offer]],
        calls: Mapping[str, int],
        instants: Sequence[Instant],
    ) -> None:
        self._graphs, self._offers = list(offers), offers
        self._fixed = np.array([i.fixed_nbytes for i in instants], np.float64)
        self._bytes = [self._bytes_of(graph, instants) for graph in self._graphs]
        self._times = [
            np.array([calls[graph] * o.picoseconds for o in offers[graph]], np.float64)
            for graph in self._graphs
        ]

    def _bytes_of(self, graph: str, instants: Sequence[Instant]) -> _Array:
        """bytes(m, g) of every moment (rows) and offer (columns)."""
        uses = [offer.use for offer in self._offers[graph]]
        held = np.array([use.held_nbytes for use in uses], np.float64)
        own = np.array(
            [
                [use.forward_nbytes for use in uses],
                [use.backward_nbytes for use in uses],
                [0 for _ in uses],
            ],
            np.float64,
        )
        waiting = np.array([dict(i.waiting).get(graph, 0) for i in instants], np.float64)
        runs = [int(i.in_backward) if i.graph == graph else 2 for i in instants]
        return waiting[:, None] * held + own[runs]

    def peak_nbytes(self, choice: Choice) -> int:
        return int(self._totals(choice).max())

    def picoseconds(self, choice: Choice) -> float:
        return sum(float(times[c]) for times, c in zip(self._times, choice, strict=True))

    def chosen(self, choice: Choice) -> dict[str, Offer]:
        """The offer of each graph."""
        return {g: self._offers[g][c] for g, c in zip(self._graphs, choice, strict=True)}

    @property
    def fastest(self) -> Choice:
        return tuple(int(times.argmin()) for times in self._times)

    def within(self, budget_nbytes: int) -> Choice | None:
        """The least time found with which every moment is within the budget; None if nothing is."""
        starts = [self.fastest, self.smallest()]
        starts += [self._at_a_price(moment, budget_nbytes) for moment in self._fullest()]
        found = [self._trade(start, budget_nbytes) for start in starts]
        fitting = [
            self._spend(choice, budget_nbytes)
            for choice in found
            if self.peak_nbytes(choice) <= budget_nbytes
        ]
        return min(fitting, key=self.picoseconds, default=None)

    def smallest(self) -> Choice:
        """The smallest peak found."""
        starts = [self._cheapest(moment, None) for moment in self._fullest()]
        starts.append(tuple(int(b.max(axis=0).argmin()) for b in self._bytes))
        return min((self._trade(s, 0) for s in starts), key=self.peak_nbytes)

    def bound(self, budget_nbytes: int) -> float:
        """No choice of these offers within the budget takes less time than this."""
        best = self.picoseconds(self.fastest)
        for moment in self._fullest():
            for price in self._prices(moment, budget_nbytes):
                least = sum(
                    float((times + price * nbytes[moment]).min())
                    for times, nbytes in zip(self._times, self._bytes, strict=True)
                )
                best = max(best, least - price * (budget_nbytes - float(self._fixed[moment])))
        return best

    # -- one price ------------------------------------------------------------------------------

    def _fullest(self) -> list[int]:
        """The moments at which most is alive with the fastest plans, fullest first."""
        return [int(m) for m in np.argsort(-self._totals(self.fastest), kind="stable")[:_PRICED]]

    def _prices(self, moment: int, budget: int) -> list[float]:
        """Prices around the one from which on the moment fits."""
        low, high = 0.0, self._highest_price(moment)
        tried = []
        for _ in range(_HALVINGS):
            price = (low * high) ** 0.5 if low else high / 2**20
            tried.append(price)
            if self._totals(self._cheapest(moment, price))[moment] <= budget:
                high = price
            else:
                low = price
        return [*tried, high]

    def _highest_price(self, moment: int) -> float:
        """At which nothing but bytes counts."""
        times = sum(float(t.max() - t.min()) for t in self._times)
        steps = [
            float(b - a)
            for nbytes in self._bytes
            for a, b in pairwise(np.unique(nbytes[moment]).tolist())
        ]
        return 2 * times / min(steps, default=1.0) + 1

    def _at_a_price(self, moment: int, budget: int) -> Choice:
        return self._cheapest(moment, self._prices(moment, budget)[-1])

    def _cheapest(self, moment: int, price: float | None) -> Choice:
        """What every graph chooses at a price; None: the fewest bytes, whatever they cost."""
        if price is None:
            return tuple(int(nbytes[moment].argmin()) for nbytes in self._bytes)
        return tuple(
            int((times + price * nbytes[moment]).argmin())
            for times, nbytes in zip(self._times, self._bytes, strict=True)
        )

    # -- trades ---------------------------------------------------------------------------------

    def _totals(self, choice: Choice) -> _Array:
        columns = (nbytes[:, c] for nbytes, c in zip(self._bytes, choice, strict=True))
        return sum(columns, self._fixed)

    def _peaks(self, totals: _Array, choice: Choice, graph: int) -> _Array:
        """The peak with each other offer of one graph."""
        nbytes = self._bytes[graph]
        others = totals - nbytes[:, choice[graph]]
        return (others[:, None] + nbytes).max(axis=0)

    def _trade(self, choice: Choice, budget: int) -> Choice:
        """Lower the peak by the trades that cost least for what they free, until it fits."""
        for _ in range(_TRADES):
            totals = self._totals(choice)
            peak = float(totals.max())
            if peak <= budget:
                break
            best: tuple[float, int, int] | None = None
            for graph, times in enumerate(self._times):
                freed = peak - np.maximum(self._peaks(totals, choice, graph), budget)
                cost = times - times[choice[graph]]
                useful = freed > 0
                if useful.any():
                    worth = np.where(useful, cost / np.where(useful, freed, 1), np.inf)
                    offer = int(worth.argmin())
                    best = min(best or (np.inf, 0, 0), (float(worth[offer]), graph, offer))
            if best is None:
                break
            choice = _with(choice, best[1], best[2])
        return choice

    def _spend(self, choice: Choice, budget: int) -> Choice:
        """Take back what costs most and is not needed."""
        for _ in range(_TRADES):
            totals = self._totals(choice)
            best: tuple[float, int, int] | None = None
            for graph, times in enumerate(self._times):
                gain = times[choice[graph]] - times
                gain = np.where(self._peaks(totals, choice, graph) <= budget, gain, 0)
                offer = int(gain.argmax())
                if gain[offer] > (best[0] if best else 0):
                    best = float(gain[offer]), graph, offer
            if best is None:
                break
            choice = _with(choice, best[1], best[2])
        return choice


def _with(choice: Choice, graph: int, offer: int) -> Choice:
    return (*choice[:graph], offer, *choice[graph + 1 :])

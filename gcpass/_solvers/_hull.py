"""The lower convex hull of (bytes kept, time) of one network: the best plan at every price.

Each cut is a corner of the hull. Between two corners the only price that can show another is the
slope of the line through them: a cut at that price either finds a corner below the line, or proves
that there is none.

Where writing and reading add nothing, divide all capacities by the price: only the edges of the
source depend on it then, and all of them fall as it rises. So the cuts are *nested* (Gallo,
Grigoriadis and Tarjan 1989): what is on the sink's side at one price is there at every higher one.
Between two prices all that both cuts agree on is decided, and is merged into the terminals: the
cuts of a hull get smaller the more of it is known.
"""

from __future__ import annotations

import copy
from fractions import Fraction
from itertools import pairwise

from gcpass._solvers._cut import Choice, CutNetwork


class Hull:
    """Corners of the hull, as many as were asked for.

    Attributes:
        corners: from the fastest to the smallest; both ends are always there.
    """

    def __init__(self, network: CutNetwork) -> None:
        self._network = network
        sides = network.fastest_side(), network.smallest_side()
        fast, small = map(network.choice, sides)
        self.corners, self._sides = [fast], [sides[0]]
        if small.nbytes < fast.nbytes:
            self.corners.append(small)
            self._sides.append(sides[1])
        self._edges: set[tuple[int, int]] = set()  # bytes of neighbours with nothing in between

    def slope(self, i: int) -> Fraction:
        """Picoseconds a byte along the line from corner ``i`` to the next."""
        fast, small = self.corners[i : i + 2]
        return Fraction(small.picoseconds - fast.picoseconds, fast.nbytes - small.nbytes)

    def is_edge(self, i: int) -> bool:
        """Whether it is known that there is no corner between corner ``i`` and the next."""
        fast, small = self.corners[i : i + 2]
        return (fast.nbytes, small.nbytes) in self._edges

    def split(self, i: int) -> Choice:
        """Cut at the slope from corner ``i`` to the next: a new corner, if it is below the line."""
        fast, small = self.corners[i : i + 2]
        slope = self.slope(i)
        side = self._network.side_between(slope, *self._sides[i : i + 2])
        found = self._network.choice(side)
        below = found.picoseconds + slope * found.nbytes < fast.picoseconds + slope * fast.nbytes
        if below and small.nbytes < found.nbytes < fast.nbytes:
            self.corners.insert(i + 1, found)
            self._sides.insert(i + 1, side)
        else:
            self._edges.add((fast.nbytes, small.nbytes))
        return found

    def spread(self, limit: int) -> list[Choice]:
        """Split the widest gaps, in bytes, until there are ``limit`` corners; the corners."""
        while len(self.corners) < limit:
            gaps = [
                (fast.nbytes - small.nbytes, i)
                for i, (fast, small) in enumerate(pairwise(self.corners))
                if not self.is_edge(i)
            ]
            if not gaps:
                break
            self.split(max(gaps)[1])
        return self.corners

    def copy(self) -> Hull:
        """Another hull of the network, with the corners found so far."""
        other = copy.copy(self)
        other.corners, other._sides = list(self.corners), list(self._sides)
        other._edges = set(self._edges)
        return other

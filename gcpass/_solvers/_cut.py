"""The cheapest set to keep for one price of memory: a single minimum cut.

Every value v of the forward range is a pair of vertices v_in -> v_out:

    v_in -> v_out      keep(v)       price of keeping v             (`CutNetwork.cut`)
    source -> v_in     recompute(v)  time of recomputing v          (`CutNetwork.cut`)
    u_out -> v_in      unbounded     v reads u: to recompute v, have u
    v_out -> sink      unbounded     the backward reads v

On the sink's side stands what exists in the backward. A cut through v_in -> v_out keeps v; one
through source -> v_in recomputes it; the unbounded edges make sure that whatever is recomputed
finds its inputs. So the value of the cut is exactly

    sum of keep(v) over kept v  +  sum of recompute(v) over recomputed v,

and the minimum cut is the cheapest plan at that price, dependencies included. keep(v) is
``price`` x bytes of its storage plus what writing and reading it adds; views are never kept (their
storage is) and cost nothing to recompute, so they are contracted before the flow runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

from gcpass._problem import Problem, Rule
from gcpass._solvers._flow import SINK, SOURCE, Edge, sink_side

Vertices = frozenset[object]


@dataclass(frozen=True, slots=True)
class Choice:
    """What one cut keeps of a stretch of the forward range.

    Attributes:
        kept: the ops kept, beyond the ones that were given.
        nbytes: their bytes.
        picoseconds: what the choice costs: recomputation, and writing and reading what is kept.
    """

    kept: frozenset[int]
    nbytes: int
    picoseconds: int


class CutNetwork:
    """The network of one stretch of the forward range; cut it at any price.

    It is shrunk before any flow runs: views stand for what they view, a value that only one
    other reads is merged into its reader where keeping it could never be the better choice, and
    values that are alike in all that a cut sees (a norm's statistics) are one.

    Attributes:
        demanded: ops of the stretch that the backward itself reads, less the given ones, and what
            else is wanted.
    """

    def __init__(
        self,
        problem: Problem,
        ops: range,
        given: Collection[int],
        weigh: Callable[[int], int] | None = None,
        wanted: Collection[int] = (),
    ) -> None:
        """
        Args:
            problem: the problem.
            ops: a stretch of the forward range; what it reads from before it is there.
            given: ops of the stretch that are kept in any case.
            weigh: the bytes that keeping an op counts for, and time for writing and reading it
                none; by default its own bytes, and its own time.
            wanted: ops of the stretch that are wanted beside those that the backward reads.
        """
        self._problem, self._weigh = problem, weigh
        self.demanded = _demanded(problem, ops, given).union(wanted)
        members = _members(problem, ops, given, self.demanded)
        stands_for = _views(problem, members)
        self._reads: dict[int, set[int]] = {}
        for op in members:
            vertex = stands_for[op]
            reads = {stands_for[r] for r in problem.ops[op].inputs if r in stands_for}
            self._reads.setdefault(vertex, set()).update(reads - {vertex})
        self._targets = {stands_for[op] for op in self.demanded}
        self._alike = {v: [v] for v in self._reads}  # the values that a vertex stands for
        self._set_prices()
        self._merge_series()
        self._merge_parallel()
        self._bytes_bound = 1 + sum(self._nbytes[v] for v in self._keepable)
        self._time_bound = 1 + sum(t or 0 for t in self._time.values())
        self._time_bound += sum(self._keep_time[v] for v in self._keepable)
        self._nests = not any(self._keep_time[v] for v in self._keepable)
        self._sides: dict[Fraction, Vertices] = {}  # by price: the flow at one runs once

    def _set_prices(self) -> None:
        problem = self._problem
        self._time: dict[int, int | None] = {}  # None: must not be recomputed
        self._nbytes: dict[int, int] = {}
        self._keep_time: dict[int, int] = {}
        self._keepable: set[int] = set()
        for v in self._reads:
            op = problem.ops[v]
            storage = problem.kept_storage.get(v)
            must_keep = op.obeys(Rule.KEEP) and storage is not None
            forbidden = must_keep or op.obeys(Rule.NEVER_RECOMPUTE)
            self._time[v] = None if forbidden else problem.recompute_picoseconds(v)
            if storage is not None:
                self._keepable.add(v)
                weighed = self._weigh is not None
                self._nbytes[v] = self._weigh(v) if self._weigh else problem.keep_nbytes(v)
                self._keep_time[v] = 0 if weighed else problem.keep_picoseconds(v)

    def _merge_series(self) -> None:
        """Merge v into its only reader u where v is recomputed exactly when u is.

        That is so if v cannot be kept, or if keeping u costs no more than keeping v would at any
        price: whatever is recomputed of v serves u alone.
        """
        readers = self._readers()
        for v in sorted(self._reads):
            if v in self._targets or len(readers[v]) != 1:
                continue
            (u,) = readers[v]
            dominated = v not in self._keepable or (
                u in self._keepable
                and self._nbytes[u] <= self._nbytes[v]
                and self._keep_time[u] <= self._keep_time[v]
            )
            if not dominated:
                continue
            mine, its = self._time.pop(v), self._time[u]
            self._time[u] = None if mine is None or its is None else mine + its
            for w in self._reads[v]:
                readers[w] = {u if r == v else r for r in readers[w]}
            self._reads[u] = (self._reads[u] | self._reads.pop(v)) - {v}
            self._keepable.discard(v)

    def _merge_parallel(self) -> None:
        """Merge values that read the same, are read by the same and cost the same.

        To exchange two of them changes nothing of the network, and so nothing of the one sink's
        side with the fewest vertices: both are on it, or neither is.
        """
        readers = self._readers()
        alike: dict[object, list[int]] = {}
        for v, reads in self._reads.items():
            edges = frozenset(reads), frozenset(readers[v]), v in self._targets
            keep = (self._nbytes[v], self._keep_time[v]) if v in self._keepable else None
            alike.setdefault((edges, keep, self._time[v]), []).append(v)
        for first, *others in alike.values():  # what is read comes before its readers
            self._alike[first] += others
            count, time = len(self._alike[first]), self._time[first]
            self._time[first] = None if time is None else count * time
            if first in self._keepable:
                self._nbytes[first] *= count
                self._keep_time[first] *= count
            for v in others:
                for u in readers[v]:
                    self._reads[u].discard(v)
                del self._reads[v], self._time[v]
                self._keepable.discard(v)
                self._targets.discard(v)

    def _readers(self) -> dict[int, set[int]]:
        readers: dict[int, set[int]] = {v: set() for v in self._reads}
        for u, reads in self._reads.items():
            for v in reads:
                readers[v].add(u)
        return readers

    def cut(self, price: Fraction) -> Choice:
        """The cheapest choice at ``price`` picoseconds a byte.

        Raises:
            UnsupportedGraph: the rules of the problem leave no choice.
        """
        return self.choice(self.side(price))

    def fastest(self) -> Choice:
        """The least time, and among those the fewest bytes."""
        return self.choice(self.fastest_side())

    def smallest(self) -> Choice:
        """The fewest bytes, and among those the least time."""
        return self.choice(self.smallest_side())

    def choice(self, side: Vertices) -> Choice:
        """What a sink's side keeps."""
        kept = [v for v in self._keepable if ("out", v) in side and v not in side]
        time = sum(t for v, t in self._time.items() if t is not None and v in side)
        time += sum(self._keep_time[v] for v in kept)
        every = frozenset(value for v in kept for value in self._alike[v])
        return Choice(every, sum(self._nbytes[v] for v in kept), time)

    def side(self, price: Fraction) -> Vertices:
        """The sink's side of the cheapest cut at a price."""
        if price not in self._sides:
            self._sides[price] = frozenset(sink_side(*self.edges(price)))
        return self._sides[price]

    def fastest_side(self) -> Vertices:
        """The same at a price so low that all bytes together cost less than the shortest time."""
        return self.side(Fraction(1, self._bytes_bound))

    def smallest_side(self) -> Vertices:
        """The same at a price so high that one byte costs more than all time together."""
        everything = None not in self._time.values() and all(self._nbytes.values())
        if everything:  # recomputed, and nothing kept: no flow is needed to see that
            return frozenset((*self._time, *map(self._out, self._time)))
        return self.side(Fraction(self._time_bound))

    def side_between(self, price: Fraction, fast: Vertices, small: Vertices) -> Vertices:
        """The same at a price between those of two known sides, of which ``small`` holds more.

        If cuts are nested, what is on both sides is, and what is on neither is not.
        """
        if not self._nests:
            return self.side(price)
        if price not in self._sides:
            self._sides[price] = self._cut_between(price, fast, small)
        return self._sides[price]

    def _cut_between(self, price: Fraction, fast: Vertices, small: Vertices) -> Vertices:
        capacities, unbounded = self.edges(price)

        def merged(edge: Edge) -> Edge:
            u, v = (SINK if x in fast else x if x in small else SOURCE for x in edge)
            return u, v

        undecided: dict[Edge, int] = {}
        for edge, capacity in capacities.items():
            between = merged(edge)
            if _matters(between):
                undecided[between] = undecided.get(between, 0) + capacity
        return fast | sink_side(undecided, [e for e in map(merged, unbounded) if _matters(e)])

    def edges(self, price: Fraction) -> tuple[dict[Edge, int], list[Edge]]:
        """The edges that may be cut, with their capacities, and those that may not.

        Bytes and time are scaled to whole numbers, by the price's denominator and what they have in
        common.
        """
        scale_time, scale_bytes = price.denominator, price.numerator
        capacities: dict[Edge, int] = {}
        unbounded: list[Edge] = []
        for v, time in self._time.items():
            if time is None:
                unbounded.append((SOURCE, v))
            elif time:
                capacities[SOURCE, v] = time * scale_time
            if v in self._keepable:
                keep = self._nbytes[v] * scale_bytes + self._keep_time[v] * scale_time
                capacities[v, ("out", v)] = keep
        for v, reads in self._reads.items():
            unbounded += [(self._out(u), v) for u in reads]
        unbounded += [(self._out(v), SINK) for v in self._targets]
        common = math.gcd(*capacities.values())
        if common > 1:
            capacities = {edge: c // common for edge, c in capacities.items()}
        return capacities, unbounded

    def _out(self, v: int) -> object:
        """The out-vertex of a value; one that cannot be kept has a single vertex."""
        return ("out", v) if v in self._keepable else v


def _matters(edge: Edge) -> bool:
    """Whether a cut can tell: not so within a terminal, into the source, or out of the sink."""
    u, v = edge
    return u != SINK and v != SOURCE and u != v and edge != (SOURCE, SINK)


def _demanded(problem: Problem, ops: range, given: Collection[int]) -> frozenset[int]:
    """What the backward reads of ``ops`` itself, or must find kept."""
    kept_anyway = (op for op in ops if problem.ops[op].obeys(Rule.KEEP) and problem.wanted[op])
    return frozenset((*problem.demanded_in(ops), *kept_anyway)).difference(given)


def _members(
    problem: Problem, ops: range, given: Collection[int], demanded: Collection[int]
) -> list[int]:
    """The ops that would all be recomputed if nothing but ``given`` were kept."""
    members: set[int] = set()
    stack = list(demanded)
    while stack:
        op = stack.pop()
        if op not in members and op not in given and op >= ops.start:
            members.add(op)
            stack.extend(problem.ops[op].inputs)
    return sorted(members)


def _views(problem: Problem, members: list[int]) -> dict[int, int]:
    """For each member, the member it stands for: what it views, or itself."""
    stands_for: dict[int, int] = {}
    for op in members:
        inputs = [i for i in problem.ops[op].inputs if i in stands_for]
        is_view = (
            problem.is_view(op)
            and op not in problem.kept_storage
            and len(inputs) == 1
            and set(problem.ops[op].storages) <= set(problem.ops[inputs[0]].storages)
        )
        stands_for[op] = stands_for[inputs[0]] if is_view else op
    return stands_for

"""Graphs that share one memory budget: what is known of them, and which plan each gets.

All graphs of one process that were compiled with equal options form a group (Dynamo, too, takes
backends with equal options for one). A graph is planned alone, for the whole budget, until a step
is seen in which a call of another graph, or another call of the same, is alive beside it. Graphs
that are compiled while calls are alive get what those leave of the budget. When such a step is
over, all its forwards and backwards are known (`gcpass.fx._calls`); if it was over the budget, or
some of its graphs had to do with what others left, Dynamo is told to compile them again, and then
each gets its part of the budget (`gcpass._shared`). That is done once for each kind of step.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType

from gcpass._budget import Budget
from gcpass._errors import InfeasibleBudget
from gcpass._evaluate import Evaluator, Use
from gcpass._shared import Instant, Offer, Shared, offers
from gcpass._units import format_bytes
from gcpass.fx import _compat
from gcpass.fx._calls import Calls, Step

_STEPS = 8  # kinds of steps remembered
_CORRECTIONS = 4  # of one group, at most

_Kind = tuple[tuple[str, bool], ...]  # what runs in a step, in order


@dataclass
class _Graph:
    """What is known of one graph.

    Attributes:
        use: of the plan that it runs with.
        picoseconds: what a call costs under that plan.
        evaluator: of its problem; None if nobody plans it.
        is_provisional: whether its plan was made for what others left of the budget.
        predicted: `use` by the planner's own count.
        codes: the functions that it is of.
    """

    use: Use
    picoseconds: int
    evaluator: Evaluator | None
    is_provisional: bool
    predicted: Use
    codes: weakref.WeakSet[CodeType] = field(default_factory=weakref.WeakSet)
    _offers: list[Offer] | None = None

    def offers(self) -> list[Offer]:
        """Its plans, with the memory they would have by the count that `use` is of."""
        if self.evaluator is None:
            return [Offer(self.use, self.picoseconds)]
        if self._offers is None:
            self._offers = offers(self.evaluator)
        return [replace(o, use=_scaled(o.use, self.use, self.predicted)) for o in self._offers]


def _scaled(use: Use, counted: Use, predicted: Use) -> Use:
    """A predicted use as it would be counted, if another was predicted and counted so."""
    if counted == predicted:
        return use
    return Use(
        -(-use.forward_nbytes * counted.forward_nbytes // max(predicted.forward_nbytes, 1)),
        -(-use.held_nbytes * counted.held_nbytes // max(predicted.held_nbytes, 1)),
        -(-use.backward_nbytes * counted.backward_nbytes // max(predicted.backward_nbytes, 1)),
    )


class Group:
    """The graphs of one budget.

    Args:
        budget: in bytes or as a fraction.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.calls = Calls(self._learn)
        self.margin = 0.0  # of a count, for what no code names
        self._graphs: dict[str, _Graph] = {}
        self._steps: dict[_Kind, Step] = {}
        self._corrected: set[_Kind] = set()
        self._corrections = 0
        self._nbytes: int | None = budget.nbytes
        self._choice: dict[str, Offer] | None = None
        self._scope: frozenset[str] = frozenset()  # graphs whose steps are planned together now
        self._open: set[str] = set()  # of those, the ones that have not been compiled again yet
        self._alone: set[str] = set()  # graphs that were thought to be parts, and are not
        self._has_warned = False

    # -- while compiling ------------------------------------------------------------------------

    @property
    def has_others(self) -> bool:
        """Whether a graph that is compiled now is not the only one, as far as is known."""
        return bool(self.calls.waiting or self._steps)

    def has_part(self, graph: str) -> bool:
        """Whether whole steps are known that a graph runs in beside others."""
        return any(graph in _graphs(step) for step in self._steps.values())

    def is_alone(self, graph: str) -> bool:
        """Whether a step was seen that a graph ran in alone."""
        return graph in self._alone

    def left_nbytes(self) -> int | None:
        """What the calls alive now leave of the budget; None for a fraction of what is unknown."""
        if self._nbytes is None:
            return None
        held = sum(n * self._graphs[g].use.held_nbytes for g, n in self.calls.waiting.items())
        return self._nbytes - held - self.calls.fixed_nbytes

    def note(
        self,
        graph: str,
        use: Use,
        picoseconds: int = 0,
        *,
        evaluator: Evaluator | None = None,
        predicted: Use | None = None,
        code: CodeType | None = None,
        is_provisional: bool = False,
        is_final: bool = True,
    ) -> None:
        """Remember the plan that a graph runs with, or that was counted and may not be final."""
        before = self._graphs.get(graph)
        new = _Graph(use, picoseconds, evaluator, is_provisional, predicted or use)
        if before is not None:
            new.codes |= before.codes
            if evaluator is not None and before.evaluator is evaluator:
                new._offers = before._offers
        if code is not None:
            new.codes.add(code)
        self._graphs[graph] = new
        if is_final:
            self._open.discard(graph)

    @property
    def nbytes(self) -> int | None:
        """The budget in bytes; None for a fraction of a step that is not known."""
        return self._nbytes

    def part(self, graph: str, evaluator: Evaluator, on_infeasible: str) -> tuple[Offer, Evaluator]:
        """The plan of one graph in all the steps that are known.

        Raises:
            InfeasibleBudget: no choice of plans keeps the budget, and the request says to raise.
        """
        known = self._graphs.get(graph)
        if (
            known is None
            or known.evaluator is None
            or (known.evaluator.problem != evaluator.problem)
        ):
            use = known.use if known is not None else Use(0, 0, 0)
            self.note(graph, use, evaluator=evaluator, is_final=False)
            self._begin({graph})
        chosen = (self._choice or {}).get(graph)
        if graph not in self._open and (chosen is None or chosen.solution is None):
            self._begin({graph})
        if self._choice is None or graph not in self._choice:
            self._choice = self._solve(on_infeasible)
        offer, owner = self._choice[graph], self._graphs[graph].evaluator
        assert owner is not None
        return offer, owner

    def is_kept(self, graph: str, use: Use) -> bool:
        """Whether the plans chosen keep the budget with what was counted of one of them.

        If not, they are chosen again, with that in mind, when a part is next asked for.
        """
        uses = self._uses() | {graph: use}
        if max(i.nbytes(uses) for i in self._instants()) <= self._countable():
            return True
        self._choice = None
        return False

    def _begin(self, graphs: set[str]) -> None:
        """Choose plans of some graphs again, with all that they run beside in mind."""
        steps = [step for step in self._steps.values() if graphs & _graphs(step)]
        self._scope = frozenset(graphs).union(*map(_graphs, steps))
        self._open = self._open | graphs
        self._choice = None

    def _solve(self, on_infeasible: str) -> dict[str, Offer]:
        instants = self._instants()
        graphs = sorted({i.graph for i in instants})
        every = {graph: self._graphs[graph].offers() for graph in graphs}
        calls = self._calls()
        if self._nbytes is None:
            assert self.budget.fraction is not None
            whole = Shared(every, calls, instants)
            self._nbytes = max(int(self.budget.fraction * whole.peak_nbytes(whole.fastest)), 1)
        for graph in graphs:
            if graph not in self._open:
                known = self._graphs[graph]
                every[graph] = [Offer(known.use, known.picoseconds)]
        shared = Shared(every, calls, instants)
        choice = shared.within(self._countable())
        if choice is None:
            choice = shared.smallest()
            message = self._infeasible(shared.chosen(choice), instants)
            if on_infeasible == "error":
                floor = shared.peak_nbytes(choice)
                raise InfeasibleBudget(message, budget_bytes=self._nbytes, floor_bytes=floor)
            self._warn(f"{message} Going on with the smallest peak.")
        return shared.chosen(choice)

    def _countable(self) -> int:
        assert self._nbytes is not None
        return int(self._nbytes / (1 + self.margin))

    def _uses(self) -> dict[str, Use]:
        uses = {graph: known.use for graph, known in self._graphs.items()}
        chosen = self._choice or {}
        return uses | {g: offer.use for g, offer in chosen.items() if g in self._open}

    def _planned_steps(self) -> list[Step]:
        return [step for step in self._steps.values() if self._scope & _graphs(step)]

    def _instants(self) -> list[Instant]:
        return [instant for step in self._planned_steps() for instant in step]

    def _calls(self) -> Counter[str]:
        """How often each graph runs in the step that runs it most."""
        calls: Counter[str] = Counter()
        for step in self._planned_steps():
            calls |= Counter(i.graph for i in step if not i.in_backward)
        return calls

    # -- in words -------------------------------------------------------------------------------

    def describe(self) -> str:
        """What the graphs share, for the notes of their plans."""
        assert self._nbytes is not None
        uses, instants = self._uses(), self._instants()
        fullest = max(instants, key=lambda i: i.nbytes(uses))
        calls = self._calls()
        return (
            f"one of {_plural(len(calls), 'graph')} in {_plural(calls.total(), 'call')} that "
            f"share the budget of {format_bytes(self._nbytes)}: the step holds "
            f"{format_bytes(fullest.nbytes(uses))}, most in the {self._name(fullest)}"
        )

    def _infeasible(self, chosen: Mapping[str, Offer], instants: list[Instant]) -> str:
        uses = {graph: offer.use for graph, offer in chosen.items()}
        fullest = max(instants, key=lambda i: i.nbytes(uses))
        total, fixed = fullest.nbytes(uses), fullest.fixed_nbytes
        held = fullest.outside_nbytes(uses) - fixed
        parts = [
            (total - held - fixed, f"the {self._name(fullest)} itself"),
            (held, f"what {_plural(sum(n for _, n in fullest.waiting), 'other call')} hold"),
            (fixed, "gradients and values made between the graphs"),
        ]
        made_of = ", ".join(f"{format_bytes(n)} {words}" for n, words in sorted(parts)[::-1] if n)
        return (
            f"memory_budget={format_bytes(self._nbytes or 0)} is below the smallest peak found of "
            f"the {_plural(len(_graphs(instants)), 'graph')} that share it, {format_bytes(total)}, "
            f"which is made of {made_of}. Raise the budget to at least {format_bytes(total)} "
            f"({total} bytes), or use a smaller batch or sequence."
        )

    def _name(self, instant: Instant) -> str:
        codes = self._graphs[instant.graph].codes
        names = sorted({code.co_name for code in codes})
        return f"{'backward' if instant.in_backward else 'forward'} of {' and '.join(names)}"

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"gcpass: {message}", stacklevel=2)

    # -- while running --------------------------------------------------------------------------

    def _learn(self, step: Step) -> None:
        """A step is over: remember it, and have its graphs compiled again if that is due."""
        if sum(not instant.in_backward for instant in step) == 1:
            self._learn_alone(_graphs(step))
            return
        kind = tuple((i.graph, i.in_backward) for i in step)
        before = self._steps.pop(kind, step)
        self._steps[kind] = tuple(
            replace(new, fixed_nbytes=max(new.fixed_nbytes, old.fixed_nbytes))
            for new, old in zip(step, before, strict=True)
        )
        for oldest in list(self._steps)[:-_STEPS]:
            self._steps.pop(oldest)
        graphs = _graphs(step)
        peak = max(instant.nbytes(self._uses()) for instant in self._steps[kind])
        known = [self._graphs[graph] for graph in graphs]
        is_over = self._nbytes is None or peak > self._nbytes
        if not is_over and not any(graph.is_provisional for graph in known):
            return
        if kind in self._corrected or self._corrections == _CORRECTIONS:
            if is_over and self._nbytes is not None:
                self._warn(
                    f"a step of {_plural(len(graphs), 'graph')} holds {format_bytes(peak)} of a "
                    f"memory budget of {format_bytes(self._nbytes)}, after they were planned again "
                    "for it."
                )
            return
        self._corrected.add(kind)
        self._corrections += 1
        self._nbytes = self.budget.nbytes
        self._begin(graphs)
        self._forget(known)

    def _learn_alone(self, graphs: set[str]) -> None:
        """A graph ran alone: if it could not keep the budget so, that is to be said."""
        wrong = {
            graph
            for graph in graphs - self._alone
            if self._graphs[graph].is_provisional and self._graphs[graph].evaluator is not None
        }
        self._alone |= wrong
        self._forget([self._graphs[graph] for graph in wrong])

    def _forget(self, graphs: list[_Graph]) -> None:
        for graph in graphs:
            _CORRECTING.add(self)
            for code in list(graph.codes):
                _compat.forget(code)


def _graphs(step: Step | list[Instant]) -> set[str]:
    return {instant.graph for instant in step}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_GROUPS: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
_CORRECTING: set[Group] = set()  # nothing else refers to a group all of whose graphs are forgotten


def group_of(key: str, budget: Callable[[], Budget]) -> Group:
    """The group of a key; a new one if no graph of it is left.

    Args:
        key: equal for equal options.
        budget: of a new group, in bytes or as a fraction.
    """
    group = _GROUPS.get(key)
    if group is None:
        group = _GROUPS[key] = Group(budget())
    _CORRECTING.discard(group)
    return group

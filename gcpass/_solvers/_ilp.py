"""An oracle: the plan as an integer program, solved by HiGHS (``pip install 'gcpass[ilp]'``).

For every value v of the forward range and every step t of the backward that reads some of them,

    keep(v)          whether v is kept
    have(v, t)       whether v has been recomputed by the time step t runs
    alive(s, t)      whether storage s is alive during step t          (between 0 and 1)

    minimise   sum of time(v) have(v, end)

    have(v, t) >= have(v, t - 1),  have(v, t) <= 1 - keep(v)
    keep(v) + have(v, t) >= 1                        v is read by step t
    keep(w) + have(w, t) >= have(u, t)               u reads w
    have(v, t) <= [v read by t] + sum of have(u, t) over readers u     (nothing is early)
    alive(s, t) >= keep or have of its value, less one if only a later recomputation uses it,
                   plus whether that is still to come: have(u, end) - have(u, t - 1)
    base(t) + sum of bytes(s) alive(s, t) <= B
    what the forward itself holds at v + sum of bytes(s) keep(s) over what it is done with <= B

which is the schedule of `gcpass._evaluate`, but for one thing: all that is recomputed just before a
step counts as alive together. So every solution is within the budget, and a better plan may exist.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np

from gcpass._errors import OptionError
from gcpass._evaluate import Evaluator
from gcpass._problem import Phase, Rule
from gcpass._solvers._corners import unconstrained
from gcpass._solvers._segments import solve as solve_by_segments
from gcpass._solvers._solution import Solution, Status

TIME_LIMIT_SECONDS = 60.0


def solve(
    evaluator: Evaluator, budget_bytes: int | None, seconds: float = TIME_LIMIT_SECONDS
) -> Solution:
    """The plan of the integer program; the usual solver's where it finds none in time.

    Args:
        evaluator: of the problem.
        budget_bytes: the bound on the peak, or None for none.
        seconds: after which the best solution so far is taken.

    Raises:
        OptionError: scipy is not installed.
    """
    kept, evaluation = unconstrained(evaluator)
    if budget_bytes is None or evaluation.peak_nbytes <= budget_bytes:
        return Solution(Status.FEASIBLE, kept, evaluation)
    found = Program(evaluator, budget_bytes).solve(seconds)
    if found is not None:
        evaluation = evaluator.evaluate(found)
        if evaluation.peak_nbytes <= budget_bytes:
            return Solution(Status.FEASIBLE, found, evaluation)
    return solve_by_segments(evaluator, budget_bytes)


class Program:
    """The integer program of one problem and budget."""

    def __init__(self, evaluator: Evaluator, budget: int) -> None:
        self._problem, self._steps = evaluator.problem, evaluator.backward.steps
        problem = self._problem
        self._values = [v for v in problem.forward_range if problem.wanted[v]]
        self._moments = [t for t, step in enumerate(self._steps) if step.needs]
        self._upper: list[int] = []
        self._whole: list[int] = []
        self._rows: list[tuple[dict[int, int], float]] = []  # sum of terms >= right side
        self._keep = {v: self._variable(v in problem.kept_storage) for v in self._values}
        self._have = {
            (v, t): self._variable(not problem.ops[v].obeys(Rule.NEVER_RECOMPUTE))
            for v in self._values
            for t in self._moments
        }
        self._schedule()
        self._hold(budget)
        self._hold_forward(budget)

    def _variable(self, allowed: bool = True, whole: bool = True) -> int:
        self._upper.append(int(allowed))
        self._whole.append(int(whole))
        return len(self._upper) - 1

    def _at_least(self, terms: dict[int, int], right: float) -> None:
        self._rows.append((terms, right))

    def _schedule(self) -> None:
        """What must be there, when, and nothing earlier."""
        problem, keep, have = self._problem, self._keep, self._have
        read: set[int] = set()
        for before, t in zip([None, *self._moments], self._moments, strict=False):
            needs = self._steps[t].needs
            read.update(needs)
            for v in self._values:
                here = have[v, t]
                if before is not None:
                    self._at_least({here: 1, have[v, before]: -1}, 0)
                self._at_least({here: -1, keep[v]: -1}, -1)
                if v in needs:
                    self._at_least({keep[v]: 1, here: 1}, 1)
                for w in dict.fromkeys(problem.ops[v].inputs):
                    if w in keep:
                        self._at_least({keep[w]: 1, have[w, t]: 1, here: -1}, 0)
                if v not in read:
                    readers = {have[u, t]: 1 for u in problem.readers[v] if u in keep}
                    self._at_least({**readers, here: -1}, 0)
        for v in self._values:
            if problem.ops[v].obeys(Rule.KEEP) and v in problem.kept_storage:
                self._at_least({keep[v]: 1}, 1)

    def _hold(self, budget: int) -> None:
        """What is alive at each moment, and that it fits."""
        problem, keep, have = self._problem, self._keep, self._have
        moments, end = self._moments, self._moments[-1] if self._moments else -1
        direct: dict[int, int] = {}  # storage -> the last moment that reads it itself
        users: dict[int, set[int]] = defaultdict(set)  # storage -> values recomputed from it
        for t in moments:
            for need in self._steps[t].needs:
                direct.update(dict.fromkeys(problem.ops[need].storages, t))
        for v in self._values:
            for w in problem.ops[v].inputs:
                for s in problem.ops[w].storages:
                    users[s].add(v)
        holds = {
            s: [p for p in {problem.storages[s].producer, problem.storages[s].holder} if p in keep]
            for s in {*direct, *users} - problem.output_storages
            if problem.storages[s].producer in keep
        }
        for i, t in enumerate(moments):
            after = moments[i + 1] if i + 1 < len(moments) else len(self._steps)
            base = max(step.base_during for step in self._steps[t:after])
            alive: dict[int, int] = {}
            for s, ops in holds.items():
                a = self._variable(whole=False)
                alive[a] = -problem.storages[s].nbytes
                sources = [have[problem.storages[s].producer, t]]
                sources += [keep[o] for o in ops if problem.kept_storage.get(o) == s]
                for there in sources:
                    if direct.get(s, -1) >= t:
                        self._at_least({a: 1, there: -1}, 0)
                    for u in users[s]:
                        terms = {a: 1, there: -1, have[u, end]: -1}
                        if i:
                            terms[have[u, moments[i - 1]]] = 1
                        self._at_least(terms, -1)
            self._at_least(alive, base - budget)

    def _hold_forward(self, budget: int) -> None:
        """That the forward fits: its own values while it reads them, and what is kept after."""
        problem = self._problem
        order = [v for v in problem.forward_range if problem.ops[v].phase is Phase.FORWARD]
        last: dict[int, int] = {}
        for v in order:
            for w in (v, *problem.ops[v].inputs):
                last.update(dict.fromkeys(problem.ops[w].storages, v))
        last.update(dict.fromkeys(problem.output_storages, problem.forward_range.stop))
        holder = {s: v for v, s in problem.kept_storage.items() if v in self._keep}
        for v in order:
            born = [
                s
                for s, storage in enumerate(problem.storages)
                if storage.producer in problem.forward_range and storage.producer <= v
            ]
            mine = [s for s in born if last.get(s, -1) >= v]
            done = [s for s in born if last.get(s, -1) < v and s in holder]
            held = sum(problem.storages[s].nbytes for s in mine) + problem.ops[v].workspace_nbytes
            terms = {self._keep[holder[s]]: -problem.storages[s].nbytes for s in done}
            if terms or held > budget:
                self._at_least(terms or {self._variable(allowed=False): 1}, held - budget)

    def solve(self, seconds: float) -> frozenset[int] | None:
        """What the best solution found in time keeps; None if there is none."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import csr_array
        except ImportError:
            raise OptionError(
                "solver='ilp' needs scipy: pip install 'gcpass[ilp]', or use solver='auto'"
            ) from None
        if not self._moments:
            return None  # the backward reads nothing: no choice
        scale = max(1, math.gcd(*(s.nbytes for s in self._problem.storages)))
        cost: Any = np.zeros(len(self._upper))
        for v in self._values:
            cost[self._have[v, self._moments[-1]]] = self._problem.recompute_picoseconds(v)
        entries = [(r, c, x) for r, (terms, _) in enumerate(self._rows) for c, x in terms.items()]
        rows, columns, factors = zip(*entries, strict=True)
        matrix: Any = csr_array(
            (factors, (rows, columns)), shape=(len(self._rows), len(self._upper))
        )
        right = np.array([right for _, right in self._rows], float)
        weights: Any = np.where(np.abs(matrix).max(axis=1).toarray().ravel() > 1, 1 / scale, 1.0)
        upper: Any = np.array(self._upper)
        result = milp(
            cost / max(cost.max(), 1),
            constraints=LinearConstraint(
                csr_array(matrix.multiply(weights[:, None])), right * weights, np.inf
            ),
            bounds=Bounds(0, upper),
            integrality=np.array(self._whole),
            options={"time_limit": seconds},
        )
        if result.x is None:
            return None
        return frozenset(v for v, k in self._keep.items() if result.x[k] > 0.5)

"""The part of a step's memory that no plan changes: the backward's own values.

The ops of the backward run in one fixed order whatever is kept, so the bytes of their values at
each of them are fixed too. A plan adds to that base only what it keeps and what it recomputes:

    alive(t, plan) = base(t) + kept(t, plan) + recomputed(t, plan)

`Backward` holds base(t) and, for each step t, the values of the forward range it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gcpass._fusion import Fusion, fuse, writes_in_place
from gcpass._problem import Problem


@dataclass(frozen=True, slots=True)
class Step:
    """One op of the backward that gets a buffer (under fusion: one kernel).

    Attributes:
        op: its index in the problem; of the last step, one past the last op.
        needs: ops of the forward range it reads, through fused ops.
        base_before: bytes of the backward's own values alive just before it runs.
        base_during: the same with its outputs and workspace.
        reusable_nbytes: output that may take the place of a forward value that dies here (fusion).
        reduced: storages of forward values whose place it may not take.
        gradient_nbytes: bytes of finished gradients among the base.
    """

    op: int
    needs: tuple[int, ...]
    base_before: int
    base_during: int
    reusable_nbytes: int
    gradient_nbytes: int
    reduced: frozenset[int] = frozenset()


class Backward:
    """The fixed part of the backward of one problem.

    Attributes:
        steps: what runs, in order; at the last step the gradients are handed over.
        wanted_by: for each op of the forward range, the steps that read it, in order.
        read_by_extern: ops of the forward range read by a step that cannot fuse.
        outputs_nbytes: bytes of the forward's outputs, alive throughout.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        gradients = set(problem.gradients)
        fusion = fuse(problem, problem.backward_range, gradients.__contains__)
        self.outputs_nbytes = sum(problem.storages[s].nbytes for s in problem.output_storages)
        self.steps = self._lay_out(fusion)
        self.wanted_by: dict[int, list[int]] = {}
        for t, step in enumerate(self.steps):
            for read in step.needs:
                self.wanted_by.setdefault(read, []).append(t)
        self.read_by_extern = gradients.union(
            *(
                problem.ops[op].inputs
                for op in problem.backward_range
                if not problem.ops[op].fuses_inputs and not problem.is_view(op)
            )
        )

    def _lay_out(self, fusion: Fusion) -> tuple[Step, ...]:
        """Sweep over the backward once to find when each storage dies, and once to add up."""
        problem = self._problem
        order = [op for op in problem.backward_range if op not in fusion.fused]
        end = len(order)
        dying = self._deaths(order, fusion)
        handed_over = {fusion.block(s) for g in problem.gradients for s in problem.ops[g].storages}
        born: set[int] = set()
        base, gradient_nbytes = self.outputs_nbytes, 0
        steps: list[Step] = []
        for t, op in enumerate(order):
            made = {fusion.block(s) for s in problem.produced[op]} - born
            born |= made
            new = self._total(made)
            gradient_nbytes += self._total(s for s in made if s in handed_over)
            during, reusable = base + new + problem.ops[op].workspace_nbytes, 0
            before = fusion.over(op, set(dying[t]) - made)
            if writes_in_place(problem, op, new, [problem.storages[s].nbytes for s in before]):
                during -= new
            elif problem.codegen == "inductor" and problem.ops[op].fuses:
                reusable = new
            needs = self._in_forward(fusion.sources[op])
            reduced = fusion.reduced(op)
            steps.append(Step(op, needs, base, during, reusable, gradient_nbytes, reduced))
            base += new - self._total(dying[t])
        needs = self._in_forward(problem.gradients)
        steps.append(Step(problem.backward_range.stop, needs, base, base, 0, gradient_nbytes))
        assert len(steps) == end + 1
        return tuple(steps)

    def _deaths(self, order: list[int], fusion: Fusion) -> list[list[int]]:
        """For each step, the storages of the backward whose last reader it is, parts as wholes.

        Gradients live to the end; so do tangents, which belong to the caller of the backward.
        """
        problem = self._problem
        last: dict[int, int] = {}
        first = problem.backward_range.start
        for t, op in enumerate(order):
            for source in (op, *fusion.sources[op]):
                if source >= first:
                    for s in problem.ops[source].storages:
                        last[fusion.block(s)] = t
        for s in [s for s in last if problem.storages[s].producer in fusion.fused]:
            last.pop(s)  # never alive; views of it are steps, and name it
        for op in order:
            if op in problem.gradients or problem.ops[op].target == "tangent":
                for s in problem.ops[op].storages:
                    last.pop(fusion.block(s), None)
        dying: list[list[int]] = [[] for _ in order]
        for s, t in last.items():
            dying[t].append(s)
        return dying

    def _total(self, storages: Iterable[int]) -> int:
        return sum(self._problem.storages[s].nbytes for s in storages)

    def _in_forward(self, ops: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(op for op in ops if op in self._problem.forward_range))

    def fullest_between(self, first: int, last: int) -> int:
        """The step from ``first`` to ``last`` during which the base is largest."""
        level = (last - first + 1).bit_length() - 1
        row = self._fullest[level]
        a, b = row[first], row[last - (1 << level) + 1]
        return a if self.steps[a].base_during >= self.steps[b].base_during else b

    @cached_property
    def _fullest(self) -> list[list[int]]:
        """Row k, entry i: the fullest of the 2^k steps from i on (a sparse table)."""
        during = [s.base_during for s in self.steps]
        rows = [list(range(len(during)))]
        width = 1
        while 2 * width <= len(during):
            row = rows[-1]
            pairs = zip(row, row[width:], strict=False)
            rows.append([a if during[a] >= during[b] else b for a, b in pairs])
            width *= 2
        return rows

"""The part of a step's memory that no plan changes: the backward's own values.

The ops of the backward run in one fixed order whatever is kept, so the bytes of their values at
each of them are fixed too. A plan adds to that base only what it keeps and what it recomputes:

    alive(t, plan) = base(t) + kept(t, plan) + recomputed(t, plan)

`Backward` holds base(t) and, for each step t, the values of the forward range it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from gcpass._problem import Phase, Problem

MAX_FUSED_READS = 12  # buffers one fused kernel may read before its inputs get buffers of their own


@dataclass(frozen=True, slots=True)
class Step:
    """One op of the backward that gets a buffer (under fusion: one kernel).

    Attributes:
        op: its index in the problem.
        needs: ops of the forward range it reads, through views and fused ops.
        base_before: bytes of the backward's own values alive just before it runs.
        base_during: the same with its outputs and workspace.
        reusable: bytes of output that can take the place of an input that dies here (fusion).
    """

    op: int
    needs: tuple[int, ...]
    base_before: int
    base_during: int
    reusable: int


class Backward:
    """The fixed part of the backward of one problem.

    Attributes:
        steps: what runs, in order, then one last step at which the gradients are handed over.
        wanted_by: for each op of the forward range, the steps that read it.
        read_by_extern: ops of the forward range read by a step that cannot fuse.
        outputs_nbytes: bytes of the forward's outputs, alive throughout.
        gradient_nbytes_at: for each step, bytes of finished gradients alive.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        fused = self._fused_ops()
        self.outputs_nbytes = sum(problem.storages[s].nbytes for s in problem.output_storages)
        self.read_by_extern = {
            read
            for index in problem.backward_range
            if not problem.ops[index].fuses_inputs
            for read in problem.ops[index].inputs
        } | set(problem.gradients)
        self._lay_out_steps(fused)
        self.wanted_by: dict[int, list[int]] = {}
        for t, step in enumerate(self.steps):
            for read in step.needs:
                self.wanted_by.setdefault(read, []).append(t)

    def _fused_ops(self) -> frozenset[int]:
        """Ops of the backward that are computed inside the kernels that read them."""
        problem = self.problem
        if problem.codegen != "inductor":
            return frozenset()
        gradients = set(problem.gradients)
        return frozenset(
            index
            for index in problem.backward_range
            if problem.ops[index].fuses
            and index not in gradients
            and self._readers_through_views(index)
            and all(problem.ops[r].fuses_inputs for r in self._readers_through_views(index))
        )

    def _readers_through_views(self, index: int) -> list[int]:
        problem, found, stack = self.problem, [], [index]
        gradients = set(problem.gradients)
        while stack:
            for reader in problem.readers[stack.pop()]:
                if problem.produced[reader] or not problem.ops[reader].storages:
                    found.append(reader)
                elif reader in gradients:
                    return []  # a view of it is handed over: it needs a buffer
                else:
                    stack.append(reader)
        return found

    def _lay_out_steps(self, fused: frozenset[int]) -> None:
        """Fill ``steps`` and ``gradient_nbytes_at`` in two sweeps: last uses, then bytes."""
        problem = self.problem
        forward = problem.forward_range
        reads: dict[int, tuple[frozenset[int], frozenset[int]]] = {}  # own storages, forward ops

        def read_of(index: int) -> tuple[frozenset[int], frozenset[int]]:
            if index < forward.start:
                return frozenset(), frozenset({index})
            if index in forward:
                return frozenset(), frozenset({index})
            own, needs = reads[index]
            if index in fused:
                return own, needs
            return frozenset(problem.ops[index].storages), frozenset()

        order: list[int] = []
        for index in problem.backward_range:
            op = problem.ops[index]
            own: frozenset[int] = frozenset()
            needs: frozenset[int] = frozenset()
            for read in op.inputs:
                more_own, more_needs = read_of(read)
                own, needs = own | more_own, needs | more_needs
            if index in fused and len(own) + len(needs) > MAX_FUSED_READS:
                fused = fused - {index}
            if index in fused:
                reads[index] = (own, needs)
                continue
            reads[index] = (own, needs)
            order.append(index)

        gradients = [read_of(g) for g in problem.gradients]
        last_own = frozenset().union(*(own for own, _ in gradients)) if gradients else frozenset()
        last_needs = (
            frozenset().union(*(needs for _, needs in gradients)) if gradients else frozenset()
        )
        end = len(order)
        dies: dict[int, int] = {}
        for t, index in enumerate(order):
            for s in (*problem.ops[index].storages, *reads[index][0]):
                dies[s] = t
        held = set(last_own)
        for index in order:  # tangents belong to the caller until the backward returns
            if not problem.ops[index].inputs and problem.ops[index].target == "tangent":
                held.update(problem.produced[index])
        for s in held:
            dies[s] = end
        gradient_storages = {s for g in problem.gradients for s in problem.ops[g].storages}

        nbytes = [s.nbytes for s in problem.storages]
        base = self.outputs_nbytes
        gradient_bytes = 0
        born: list[list[int]] = [list(problem.produced[i]) for i in order]
        dead: list[list[int]] = [[] for _ in range(end + 1)]
        for t, index in enumerate(order):
            for s in problem.produced[index]:
                dead[dies[s]].append(s)
        steps: list[Step] = []
        self.gradient_nbytes_at: list[int] = []
        for t, index in enumerate(order):
            op = problem.ops[index]
            allocated = sum(nbytes[s] for s in born[t])
            gradient_bytes += sum(nbytes[s] for s in born[t] if s in gradient_storages)
            freed = [nbytes[s] for s in dead[t] if s not in born[t]]
            reusable = 0
            during = base + allocated + op.workspace_nbytes
            if problem.codegen == "inductor" and op.fuses and allocated:
                if allocated in freed:
                    during -= allocated
                else:
                    reusable = allocated
            needs = tuple(sorted(n for n in reads[index][1] if n >= 0))
            steps.append(Step(index, needs, base, during, reusable))
            self.gradient_nbytes_at.append(gradient_bytes)
            base += allocated - sum(nbytes[s] for s in dead[t])
        steps.append(Step(len(problem.ops), tuple(sorted(last_needs)), base, base, 0))
        self.gradient_nbytes_at.append(gradient_bytes)
        self.steps = tuple(steps)


def is_input(problem: Problem, op: int) -> bool:
    """Whether the backward can read ``op`` for nothing: alive before the call and not mutated."""
    return problem.ops[op].phase is Phase.INPUT and problem.ops[op].constraint is None

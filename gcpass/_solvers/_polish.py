"""Spending what a plan leaves of its budget: recompute less where the peak does not notice."""

from __future__ import annotations

from gcpass._evaluate import Evaluation, Evaluator

_TRIALS, _OPS = 60, 150_000  # evaluations spent at most, and ops evaluated in them


def polish(
    evaluator: Evaluator, kept: frozenset[int], evaluation: Evaluation, budget: int
) -> tuple[frozenset[int], Evaluation]:
    """Keep more of what is recomputed while the evaluated peak stays within ``budget``.

    Candidates are tried by time saved for each byte kept, in groups that are halved on failure.

    Args:
        evaluator: of the problem.
        kept: a plan within the budget.
        evaluation: its evaluation.
        budget: bytes.

    Returns:
        A plan that costs no more, and its evaluation.
    """
    problem = evaluator.problem
    trials = max(min(_TRIALS, _OPS // len(problem.ops)), 8)

    def saved_picoseconds(op: int) -> int:
        return problem.recompute_picoseconds(op) - problem.keep_picoseconds(op)

    def worth(op: int) -> float:
        nbytes = problem.storages[problem.kept_storage[op]].nbytes
        return saved_picoseconds(op) / (nbytes + 1)

    late = set(evaluation.backward_order)
    candidates = [
        op
        for op in problem.kept_storage
        if op in late and op not in kept and saved_picoseconds(op) > 0
    ]
    candidates.sort(key=worth, reverse=True)
    stack = [candidates] if candidates else []
    while stack and trials > 0:
        group = stack.pop()
        if not set(group) - kept:
            continue
        trials -= 1
        trial = kept | frozenset(group)
        result = evaluator.evaluate(trial)
        if result.peak_nbytes <= budget:
            if result.overhead_picoseconds < evaluation.overhead_picoseconds:
                kept, evaluation = trial, result
        elif len(group) > 1:
            half = len(group) // 2
            stack += [group[half:], group[:half]]
    return kept, evaluation

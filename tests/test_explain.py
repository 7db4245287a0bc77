"""Why each value is kept or recomputed: the numbers in a plan's rows, and ``gcpass explain``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from random_problems import build_problem, problems
from test_cli import fail, run
from torch import nn

import gcpass
from gcpass._evaluate import Evaluator
from gcpass._explain import Row, explain, fold
from gcpass._problem import Constraint, Phase, Problem, Rule
from gcpass._units import PICOSECONDS


def rows_of(evaluator: Evaluator, kept: frozenset[int]) -> dict[str, Row]:
    return {row.op: row for row in explain(evaluator, evaluator.trace(kept), bounded=True)}


@given(problems(most=12))
@settings(max_examples=150, deadline=None)
def test_a_kept_values_time_is_what_a_plan_without_it_recomputes_more(problem: Problem) -> None:
    evaluator = Evaluator(problem)
    kept = evaluator.trace(frozenset(list(problem.kept_storage)[::2])).kept
    now = evaluator.evaluate(kept).recompute_picoseconds
    rows = rows_of(evaluator, kept)
    for op in kept - set(problem.outputs):
        row = rows[problem.ops[op].name]
        more = evaluator.evaluate(kept - {op}).recompute_picoseconds - now
        assert row.decision == "kept"
        assert round(row.recompute_seconds * PICOSECONDS) == more


def alive_at_peak(problem: Problem, kept: frozenset[int]) -> tuple[set[int], set[int]]:
    """By running the step op by op: what the peak holds, and what of the rest it would if kept."""
    ops = problem.ops
    held = kept | set(problem.outputs)
    forward = [i for i in problem.forward_range if ops[i].phase is Phase.FORWARD]
    backward: list[int] = []
    there = set(held)
    for op in problem.backward_range:
        missing, stack = set(), list(ops[op].inputs)
        while stack:
            read = stack.pop()
            if read in forward and read not in there and read not in missing:
                missing.add(read)
                stack.extend(ops[read].inputs)
        backward += [*sorted(missing), op]
        there |= missing
    nbytes = {s.producer: s.nbytes for s in problem.storages}
    best, found = -1, (set(), set())
    for order, start, end in ((forward, set(), held), (backward, held, set(problem.outputs))):
        alive = set(start)
        for position, op in enumerate(order):
            alive.add(op)
            later = {r for o in order[position + 1 :] for r in ops[o].inputs}
            lasting = {a for a in alive if ops[a].target == "tangent" or a in problem.gradients}
            total = sum(nbytes.get(a, 0) for a in alive)
            if total > best:
                if order is forward:
                    could = {a for a in forward if a <= op}
                else:
                    reads = {r for o in order[position:] for r in ops[o].inputs}
                    could = reads | ({op} & set(forward))
                best, found = total, (set(alive), could - alive)
            alive = {a for a in alive if a in later or a in end or a in lasting}
    return found


@given(problems(most=12))
@settings(max_examples=200, deadline=None)
def test_bytes_at_the_peak_are_those_of_a_naive_simulation(problem: Problem) -> None:
    evaluator = Evaluator(problem)
    kept = evaluator.trace(frozenset(list(problem.kept_storage)[::3])).kept
    alive, could = alive_at_peak(problem, kept)
    names = {op.name: index for index, op in enumerate(problem.ops)}
    for name, row in rows_of(evaluator, kept).items():
        there = names[name] in (alive if row.decision == "kept" else could)
        assert row.peak_bytes == (row.nbytes if there else 0), (row, alive, could)


def test_rows_of_one_reason_fold_and_their_numbers_add_up() -> None:
    row = Row("a", "mm", "layers.0.x", "f:1", 10, 1.0, "kept", "cheaper to keep", 1, 2.0, 5)
    other = replace(row, op="b", module="layers.1.x", recompute_seconds=3.0, peak_bytes=0)
    forced = replace(row, op="c", module="layers.2.x", why="a rule", forced=True)
    first, second = fold([row, other, forced])
    assert (first.count, first.recompute_seconds, first.peak_bytes) == (2, 5.0, 5)
    assert first.module == "layers.*.x"
    assert second.because == "a rule (recomputing would take 2.00 s)" and second.forced


def test_what_a_rule_leaves_no_choice_about_is_forced() -> None:
    problem = build_problem([[0], [1], [2]], [8, 8, 8], [1, 1, 1])
    rule = Constraint(Rule.NEVER_RECOMPUTE, "it draws")
    ops = [replace(op, constraint=rule) if op.name == "v0" else op for op in problem.ops]
    evaluator = Evaluator(replace(problem, ops=tuple(ops)))
    rows = rows_of(evaluator, frozenset({1, 2, 3}))
    assert rows["v0"].forced and rows["v0"].why == "it draws"
    assert not rows["v1"].forced and rows["v1"].why == "cheaper to keep"
    # Where only v1 needs v0, it is kept in its place, and says so.
    ops = [replace(op, inputs=op.inputs[1:]) if op.name == "g1" else op for op in ops]
    evaluator = Evaluator(replace(problem, ops=tuple(ops)))
    rows = rows_of(evaluator, frozenset({2, 3}))
    assert rows["v1"].why == "no larger than what must be kept otherwise: f (it draws)"


def test_reasons_of_real_plans() -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Dropout(0.1))
    data = torch.randn(256, 64)
    plan = gcpass.plan(lambda x: layers(x).mean(), (data,), codegen="eager")
    assert any("random" in row.why for row in plan.rows())
    plan = gcpass.plan(lambda x: layers(x).mean(), (data,), codegen="eager", policy="none")
    assert any(row.why == "policy none keeps it" for row in plan.rows())


def test_running_once_more_is_told_at_the_first_run() -> None:
    layers = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
    plan = gcpass.plan(
        lambda x: layers(x).square().mean(),
        (torch.randn(256, 64),),
        codegen="eager",
        hardware="reference",
        memory_budget=0.6,
    )
    assert plan.stops
    again = [row for row in plan.rows() if "once more" in row.why]
    assert again and not any(row.forced or row.peak_bytes for row in again)


def test_one_of_several_results_may_run_again() -> None:
    """Layer norms return three values; where they run again not every item is taken out again."""
    layers = nn.Sequential(*[nn.Sequential(nn.LayerNorm(32), nn.Tanh()) for _ in range(8)])
    for budget in (0.3, 0.4, 0.5):
        plan = gcpass.plan(
            lambda x: layers(x).square().mean(),
            (torch.randn(1024, 32, requires_grad=True),),
            codegen="eager",
            hardware="reference",
            memory_budget=budget,
            on_infeasible="best",
        )
        assert all(0 <= row.peak_bytes <= row.nbytes for row in plan.rows())
        if plan.stops:
            return
    raise AssertionError("no budget made values run again")


# -- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> gcpass.Plan:
    layers = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.Tanh())])
    return gcpass.plan(
        lambda x: layers(x).square().mean(),
        (torch.randn(256, 64),),
        codegen="eager",
        hardware="reference",
        memory_budget=0.75,
        solver="segments",
    )


@pytest.fixture
def stored(plan: gcpass.Plan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    return path


def test_explain_prints_the_folded_table(
    plan: gcpass.Plan, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = run("explain", stored)
    assert plan.headline() in text and plan.peak.op in text
    for row in fold(plan.rows()):
        assert row.target in text and row.why in text
    saved = sum(row.peak_bytes for row in plan.rows() if row.decision == "recomputed")
    assert saved > 0 and "−" in text


def test_on_a_narrow_terminal_no_word_of_a_decision_is_broken(
    plan: gcpass.Plan, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run("explain", stored)
    decisions = text[text.index("op, module, why") :]
    assert max(map(len, decisions.splitlines())) <= 80
    words = set(decisions.split())
    for row in fold(plan.rows()):
        assert {row.decision, row.target, *row.why.split()} <= words


def test_explain_tells_all_about_one_op(plan: gcpass.Plan, stored: Path) -> None:
    row = next(r for r in plan.rows() if r.decision == "recomputed" and r.recompute_seconds)
    text = run("explain", stored, "--op", row.op)
    for part in (row.op, row.target, row.module, row.source, row.why, f"{row.nbytes} bytes"):
        assert part in text


@pytest.mark.parametrize("op", [None, "last"])
def test_explain_writes_json(plan: gcpass.Plan, stored: Path, tmp_path: Path, op: str) -> None:
    rows = fold(plan.rows()) if op is None else plan.rows()[-1:]
    options = [] if op is None else ["--op", rows[0].op]
    assert [Row(**r) for r in json.loads(run("explain", stored, "--json", "-", *options))] == rows
    out = tmp_path / "rows.json"
    assert run("explain", stored, "--json", out, *options)
    assert [Row(**r) for r in json.loads(out.read_text())] == rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "{stored}", "--op", "{near}"], "did you mean"),
        (["explain", "{stored}", "--op", "zzzzzzzz"], "no op whose value"),
        (["explain", "{stored}", "--json", "/nowhere/rows.json"], "/nowhere"),
        (["explain", "/nowhere/plan.json"], "cannot be read"),
        (["explain", "{other}"], "not a gcpass plan"),
        (["report", "{stored}", "-o", "/nowhere/page.html"], "/nowhere"),
        (["report", "{stored}", "-o", "{folder}"], "is a directory"),
        (["report", "{other}"], "not a gcpass plan"),
        (["plan", "nowhere.py:step", "--json", "/nowhere/plan.json"], "--json /nowhere"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    arguments: list[str],
    said: str,
    plan: gcpass.Plan,
    stored: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = stored.with_name("other.json")
    other.write_text('{"format": 1}')
    values = {"stored": stored, "other": other, "folder": stored.parent}
    values["near"] = plan.rows()[0].op + "x"
    line = fail([a.format(**values) for a in arguments], capsys, monkeypatch)
    assert line.startswith("gcpass: error: ") and said in line

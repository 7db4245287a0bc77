"""The page of a plan, the curves behind it, and who writes it."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems
from test_cli import run
from torch import nn

import gcpass
from gcpass._evaluate import Evaluator
from gcpass._explain import Row, fold
from gcpass._html import element
from gcpass._html._chart import ticks
from gcpass._problem import Kernel, Problem
from gcpass._report._page import plan_page
from gcpass._timeline import timeline

NAMES = st.sampled_from(list(Kernel))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.nn.functional.gelu(self.first(x)).sin())


def step() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[Block() for _ in range(4)]), torch.randn(512, 64)


def plan_of(**options: object) -> gcpass.Plan:
    model, data = step()
    options = {"codegen": "eager", "hardware": "reference", **options}
    return gcpass.plan(lambda x: model(x).square().mean(), (data,), **options)


@pytest.fixture(scope="module")
def plan() -> gcpass.Plan:
    return replace(plan_of(memory_budget=0.6), target="train.py:step")


# -- the curve ----------------------------------------------------------------------------------


@given(problems(most=12), st.data())
@settings(max_examples=200, deadline=None)
def test_a_curve_has_the_peak_of_the_evaluation(problem: Problem, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        ops = tuple(replace(op, kernel=data.draw(NAMES)) for op in problem.ops)
        problem = replace(problem, ops=ops, codegen="inductor")
    kept = frozenset(k for k in problem.kept_storage if data.draw(st.booleans()))
    evaluator = Evaluator(problem)
    moments = evaluator.trace(kept).moments
    peak = evaluator.evaluate(kept).peak
    curve = timeline(moments, data.draw(st.integers(1, 30)))
    parts = [column[curve.peak] for column in curve.parts.values()]
    assert curve.nbytes[curve.peak] == peak.nbytes
    assert curve.ops[curve.peak] == peak.op
    assert (curve.peak >= curve.backward) == peak.in_backward
    assert parts == [peak.kept, peak.recomputed, peak.gradients, peak.outputs, peak.temporaries]
    assert min(min(column) for column in curve.parts.values()) >= 0


@given(problems(most=12), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_a_point_is_the_fullest_moment_of_its_stretch(problem: Problem, most: int) -> None:
    moments = Evaluator(problem).trace(frozenset(problem.kept_storage)).moments
    curve = timeline(moments, most)
    assert curve.starts[0] == 0 and curve.stops[-1] == curve.count == len(moments)
    assert len(curve.starts) <= most + 1
    for point, (start, stop) in enumerate(zip(curve.starts, curve.stops, strict=True)):
        assert start < stop
        assert curve.nbytes[point] == max(m.nbytes for m in moments[start:stop])
        assert {m.in_backward for m in moments[start:stop]} == {point >= curve.backward}


@pytest.mark.parametrize(
    "options",
    [
        {"memory_budget": 0.6},
        {"memory_budget": 0.6, "codegen": "inductor"},
        {"codegen": "inductor"},
        {"policy": "torch:0.3"},
        {"policy": "full", "codegen": "inductor"},
    ],
)
def test_a_plans_curve_has_the_plans_peak(options: dict[str, object]) -> None:
    plan = plan_of(**options)
    curve = plan.timeline
    assert curve is not None
    assert max(curve.nbytes) == plan.predicted_peak_bytes
    assert curve.ops[curve.peak] == plan.peak.op
    for name in (f.name for f in fields(plan.peak) if f.name.endswith("_bytes")):
        assert getattr(curve, name)[curve.peak] == getattr(plan.peak, name)
    peaks = [point.peak_bytes for point in plan.frontier]
    assert peaks and peaks == sorted(peaks, reverse=True)
    if plan.unconstrained is not None:
        assert max(plan.unconstrained.nbytes) == peaks[0]
    else:
        assert max(curve.nbytes) == peaks[0]


def test_a_plan_that_recomputes_more_than_once_has_its_curve() -> None:
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(24)])
    plan = gcpass.plan(
        lambda x: layers(x).sum(),
        (torch.randn(4096, 16),),
        codegen="eager",
        memory_budget=0.3,
        hardware="reference",
    )
    assert plan.stops and plan.timeline is not None
    assert max(plan.timeline.nbytes) == plan.predicted_peak_bytes


# -- the page -----------------------------------------------------------------------------------


class Text(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_says_what_the_plan_says(plan: gcpass.Plan) -> None:
    page = Text(plan_page(plan))
    text = " ".join(page.texts)
    assert plan.headline() in text and "train.py:step: budget" in text
    assert plan.versions and all(version in text for _, version in plan.versions)
    for name, value, below in plan.facts():
        assert name in text and value in text and below in text
    for row in fold(plan.rows()):
        assert row.target in text and row.why in text and row.module in text
    hits = [attrs for tag, attrs in page.tags if attrs.get("class") == "hit"]
    assert plan.timeline is not None and plan.unconstrained is not None
    assert len(hits) == len(plan.timeline.starts) + len(plan.unconstrained.starts)


def test_the_page_needs_nothing_from_outside(plan: gcpass.Plan) -> None:
    page = plan_page(plan)
    assert not re.search(r"https?:|@import|url\(|\bsrc=|fetch\(|XMLHttp", page)
    links = [attrs["href"] for _, attrs in Text(page).tags if "href" in attrs]
    assert links == ["data:,"]


EVIL = "<script>alert('&x')</script>\"'><b>"


def test_whatever_a_plan_says_is_escaped(plan: gcpass.Plan) -> None:
    assert plan.timeline is not None
    row = Row(*[EVIL if f.type == "str" else 1 for f in fields(Row)])
    curve = replace(plan.timeline, ops=tuple(EVIL for _ in plan.timeline.ops))
    texts = {f.name: EVIL for f in fields(plan) if f.type == "str"}
    assert len(texts) > 4
    evil = replace(
        plan,
        **texts,
        timeline=curve,
        unconstrained=curve,
        notes=(EVIL,),
        versions=((EVIL, EVIL),),
        _rows=(row,),
        peak=replace(plan.peak, op=EVIL),
    )
    for page, scripts in ((plan_page(evil), 1), (evil._repr_html_(), 0)):
        assert EVIL not in page and html.escape(EVIL) in page
        tags = [tag for tag, _ in Text(page).tags]
        assert tags.count("script") == scripts
        assert tags.count("b") == [t for t, _ in Text(_harmless(evil, scripts)).tags].count("b")
    assert element("a", EVIL, title=EVIL).count("<") == 2


def _harmless(plan: gcpass.Plan, scripts: int) -> str:
    """The same page of a plan whose words are harmless."""
    plan = gcpass.Plan.from_json(plan.to_json().replace(json.dumps(EVIL)[1:-1], "name"))
    return plan_page(plan) if scripts else plan._repr_html_()


def test_old_plans_load_and_the_page_says_what_is_missing(plan: gcpass.Plan) -> None:
    data = json.loads(plan.to_json())
    for name in ("target", "timeline", "unconstrained", "frontier"):
        del data[name]
    for row in data["rows"]:
        for name in ("recompute_seconds", "peak_bytes", "forced"):
            del row[name]
    old = gcpass.Plan.from_json(json.dumps(data))
    assert old.kept == plan.kept and old.timeline is None
    text = " ".join(Text(plan_page(old)).texts)
    assert "does not hold the memory over the step" in text
    assert "does not hold other plans" in text
    assert "does not say what each decision saves" in text
    assert fold(plan.rows())[0].target in text
    bare = replace(old, _rows=())
    assert "does not hold its decisions" in " ".join(Text(plan_page(bare)).texts)
    assert old._repr_html_() and bare._repr_html_()


def test_the_page_of_a_counted_plan_says_whose_count_its_peak_is(plan: gcpass.Plan) -> None:
    assert "Inductor" not in plan_page(plan)
    counted = replace(plan, counted=3, predicted_peak_bytes=plan.predicted_peak_bytes * 2)
    text = " ".join(Text(plan_page(counted)).texts)
    assert "The code that Inductor wrote for this plan reaches" in text and "3 plans tried" in text


def test_a_table_of_very_many_values_ends_in_a_sum(plan: gcpass.Plan) -> None:
    rows = tuple(replace(plan.rows()[0], target=f"op{i}", nbytes=1024) for i in range(1500))
    page = Text(plan_page(replace(plan, _rows=rows)))
    assert "and 500 smaller values, 500.0 KiB together" in page.texts


@given(st.floats(1e-6, 1e15))
def test_ticks_are_a_handful_and_within_the_axis(top: float) -> None:
    marks = ticks(top)
    assert 3 <= len(marks) <= 8 and marks[0] == 0 and marks[-1] <= top


def test_notebooks_show_plans_and_frontiers(plan: gcpass.Plan) -> None:
    assert plan.headline() in html.unescape(plan._repr_html_())
    model, data = step()
    frontier = gcpass.frontier(
        lambda x: model(x).sum(), (data,), codegen="eager", hardware="reference", points=4
    )
    shown = html.unescape(frontier._repr_html_())
    assert all(f"{p.recompute_ratio:.1%}" in shown for p in frontier.points)
    assert all(p.rows() for p in frontier.points)


# -- who writes it ------------------------------------------------------------------------------


def train(options: dict[str, object]) -> None:
    model, data = step()
    options = {"codegen": "eager", "hardware": "reference", **options}
    compiled = torch.compile(model, backend="gcpass", options=options)
    compiled(data).square().mean().backward()


def test_the_backend_writes_a_page_or_a_plan_that_has_one(tmp_path: Path) -> None:
    page, stored = tmp_path / "plan.html", tmp_path / "plan.json"
    train({"report": str(page), "memory_budget": 0.7})
    train({"report": stored, "memory_budget": 0.7})
    written = gcpass.Plan.from_json(stored.read_text())
    assert written.timeline is not None and written.frontier
    assert page.read_text() == plan_page(written)


def test_the_command_writes_the_page(plan: gcpass.Plan, tmp_path: Path) -> None:
    stored, page = tmp_path / "mine.json", tmp_path / "page.html"
    stored.write_text(plan.to_json())
    assert str(page) in run("report", stored, "-o", page)
    assert page.read_text() == plan_page(plan)
    stored.write_text(replace(plan, target="").to_json())
    run("report", stored, "-o", page)
    assert "<h1>mine</h1>" in page.read_text()


def test_a_traced_plan_is_an_artifact(tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "net = torch.nn.Sequential(*[torch.nn.Linear(16, 16), torch.nn.Tanh()] * 3)\n"
        "f = torch.compile(net, backend='gcpass', options={'codegen': 'eager'})\n"
        "f(torch.randn(64, 16)).sum().backward()\n"
    )
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)
    (log,) = tmp_path.iterdir()
    lines = log.read_text().splitlines()
    payloads: dict[str, str] = {}
    for place, line in enumerate(lines):
        name = (
            json.loads(line[line.index("{") :]).get("artifact", {}).get("name", "")
            if ('"artifact"' in line and "gcpass" in line)
            else ""
        )
        if name:
            body = []
            for text in lines[place + 1 :]:
                if not text.startswith("\t"):
                    break
                body.append(text[1:])
            payloads[name] = "\n".join(body)
    assert payloads["gcpass_plan_summary"].startswith("gcpass plan: no budget")
    traced = gcpass.Plan.from_json(payloads["gcpass_plan"])
    assert traced.predicted_peak_bytes > 0 and traced.timeline is None and traced.kept

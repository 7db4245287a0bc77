"""The page of a plan in a real browser, where there is one: what it shows, and that it answers."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_report import plan_of

import gcpass
from gcpass._report._page import plan_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--hide-scrollbars", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
Look = Callable[..., str]

SCRIPT = """<script>
const answer = {};
const $ = (selector) => document.querySelector(selector);
const column = (n) => [...$('.decisions').tBodies[0].rows].map((row) => row.cells[n].textContent);
answer.text = document.body.innerText;
answer.width = document.documentElement.scrollWidth;
answer.inner = innerWidth;
const reading = $('.memory .reading');
answer.atPeak = reading.textContent;
const hit = document.querySelectorAll('.memory .hit')[3];
hit.dispatchEvent(new PointerEvent('pointermove', {bubbles: true}));
answer.hovered = [reading.textContent, hit.querySelector('title').textContent];
const key = new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true, cancelable: true});
$('.memory .plot').dispatchEvent(key);
answer.moved = [
  reading.textContent, document.querySelectorAll('.memory .hit title')[4].textContent
];
const buttons = [...document.querySelectorAll('.decisions button')];
const by = (name) => buttons.find((b) => b.textContent === name);
by('values').focus();
answer.focused = document.activeElement === by('values');
by('values').click();
answer.values = column(1);
answer.sorted = by('values').closest('th').getAttribute('aria-sort');
by('op').click();
answer.ops = column(2);
const style = getComputedStyle($('.gcpass'));
answer.colors = [style.color, style.backgroundColor, getComputedStyle($('.quiet')).color,
  getComputedStyle($('.on.budget')).color];
answer.box = $('.plot').getBoundingClientRect().width;
const pre = document.createElement('pre');
pre.id = 'answer';
pre.textContent = JSON.stringify(answer);
parent.document.body.append(pre);
</script>"""


@pytest.fixture(scope="module")
def plan() -> gcpass.Plan:
    return replace(plan_of(memory_budget=0.6), target="train.py:step")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    if BROWSER is None:
        pytest.skip("there is no chromium or google-chrome to look at the page with")

    def look(page: str, *flags: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        return subprocess.run(
            [BROWSER, *FLAGS, profile, *flags, path.as_uri()],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return look


def contrast(a: str, b: str) -> float:
    """The contrast ratio of two colours, by WCAG 2.2."""

    def luminance(color: str) -> float:
        parts = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_it_and_it_answers(
    plan: gcpass.Plan, browse: Look, theme: str, width: int
) -> None:
    scheme = f"--blink-settings=preferredColorScheme={0 if theme == 'dark' else 1}"
    page = plan_page(plan).replace("</body>", SCRIPT + "</body>")
    if width < 500:  # no window is narrower, but a frame is
        style = f"width:{width}px;height:900px;border:0"
        page = f'<!doctype html><iframe srcdoc="{html.escape(page)}" style="{style}"></iframe>'
    dom = browse(page, "--dump-dom", "--window-size=1100,900", scheme).stdout
    found = re.search(r'<pre id="answer">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, dom[-500:]
    answer = json.loads(html.unescape(found[1]))
    for said in ("Memory over the step", "without a budget", "with this plan", "Decisions", "why"):
        assert said in answer["text"]
    assert answer["width"] <= answer["inner"] == width, "the page is wider than the window"
    assert answer["box"] > 0.6 * min(width, 1000)
    assert "alive" in answer["atPeak"]
    assert answer["hovered"][0] == answer["hovered"][1] != answer["atPeak"]
    assert answer["moved"][0] == answer["moved"][1] != answer["hovered"][0]
    counts = [int(v.replace(",", "")) for v in answer["values"]]
    assert answer["focused"] and answer["sorted"] == "descending"
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 1
    assert answer["ops"] == sorted(answer["ops"], key=str.lower)
    text, surface, quiet, budget = answer["colors"]
    assert (surface == "rgb(255, 255, 255)") == (theme == "light")
    assert contrast(text, surface) >= 7
    assert min(contrast(quiet, surface), contrast(budget, surface)) >= 4.5


def test_a_screenshot_shows_both_curves(plan: gcpass.Plan, browse: Look, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    shot = tmp_path / "shot.png"
    browse(plan_page(plan), f"--screenshot={shot}", "--window-size=1100,1400")
    pixels = (image.imread(shot)[..., :3] * 255).round()
    assert pixels.shape[:2] == (1400, 1100)
    for color in ((0x2A, 0x6F, 0xBB), (0x9A, 0xA5, 0xB1)):  # kept, temporaries
        rows = (abs(pixels - color).max(axis=2) < 3).sum(axis=1) > 40
        assert rows.sum() > 60

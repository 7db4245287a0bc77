"""A page in one file, and the same as a piece of a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gcpass._html._element import Markup, element


def page(title: str, *sections: Markup) -> str:
    """A whole document: style and script are in it, and nothing outside is asked for."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        element("title", title),
        element("style", Markup(_read("style.css"))),
    )
    script = element("script", Markup(_read("page.js")))
    body = element("body", element("main", *sections, class_="gcpass"), script)
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def fragment(*sections: Markup) -> str:
    """The same without a document around it and without a script."""
    return element("div", element("style", Markup(_read("style.css"))), *sections, class_="gcpass")


def tiles(facts: Sequence[tuple[str, str, str]]) -> Markup:
    """The numbers that matter most: name, value and what stands below it."""
    return element(
        "dl",
        [
            element("div", element("dt", name), element("dd", element("b", value), " ", below))
            for name, value, below in facts
        ],
        class_="tiles",
    )


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")

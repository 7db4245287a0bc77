"""HTML as text that cannot be broken by what it shows: whatever is not markup yet is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(
    name: str, *children: str | Iterable[str], **attributes: str | float | bool | None
) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: texts, which are escaped, and markup, which is not; or several of them.
        attributes: escaped too. ``class_`` is ``class``, ``data_key`` is ``data-key``; True is an
            attribute without a value, None and False are none.

    Returns:
        Its markup.
    """
    given = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        given += " " + key.rstrip("_").replace("_", "-")
        if value is not True:
            given += f'="{html.escape(str(value))}"'
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str | Iterable[str]) -> Markup:
    """Children one after the other."""
    parts = []
    for child in children:
        for part in (child,) if isinstance(child, str) else child:
            parts.append(part if isinstance(part, Markup) else html.escape(part))
    return Markup("".join(parts))

"""HTML from nested calls, escaped by construction: a plain string can never become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape as _escape

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that HTML or UTF-8 cannot hold: controls, lone surrogates, non-characters."""


class Html(str):
    """Markup that is finished; `tag` takes it as it is and escapes every other string."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as text for an element or an attribute."""
    if isinstance(value, Html):
        return value
    return Html(_escape(_UNSAFE.sub("\ufffd", str(value)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element: `tag("td", "a < b", class_="number")`.

    A child that is None is left out and a list is spliced in. In the name of an attribute `_` stands for `-`, a
    trailing one is dropped; None and False leave the attribute out, True writes its name alone.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{text(str(value))}"')
    parts.append(">")
    if name in ("meta", "img", "br"):
        return Html("".join(parts))
    return Html("".join(parts) + join(children) + f"</{name}>")


def join(children: Iterable[object]) -> Html:
    """Return children one after the other."""
    out = []
    for child in children:
        if isinstance(child, list | tuple):
            out.append(join(child))
        elif child is not None:
            out.append(text(child))
    return Html("".join(out))


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], numbers: Iterable[int] = ()) -> Html:
    """Return a table that scrolls sideways on its own; the first column heads the rows.

    Args:
        numbers: columns aligned to the right.
    """
    kind = dict.fromkeys(numbers, "number")
    header = [tag("th", name, scope="col", class_=kind.get(i)) for i, name in enumerate(head)]
    body = [
        tag("tr", [
            tag("td" if i else "th", cell, scope=None if i else "row", class_=kind.get(i))
            for i, cell in enumerate(row)
        ])
        for row in rows
    ]  # fmt: skip
    inner = tag("table", tag("caption", caption), tag("thead", tag("tr", header)), tag("tbody", body))
    # a region that can be focused, so that the keyboard reaches what lies beyond the edge of a phone
    return tag("div", inner, class_="scroll", role="region", tabindex=0, aria_label=caption)


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return short facts as a definition list; those without a value are left out."""
    return tag("dl", [
        tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")
    ], class_="facts")  # fmt: skip

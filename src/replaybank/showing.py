"""What an object says of itself: a line of text for a terminal, a small table for a notebook.

A class has a method ``_facts`` that gives names and values in order, from what is known without a lock and
without reading items, in O(1); its ``__repr__`` is :func:`text_of` and its ``_repr_html_`` :func:`html_of`.
Neither ever raises: an object that cannot tell a fact, half made or broken, is still worth naming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from replaybank.terminal import size

MOST_PARTS = 8
"""Parts of an ensemble that are shown; of more, how many there are."""
MOST_KEYS = 6
"""Keys of a list of them that are shown."""

_BORDER = "1px solid rgba(128,128,128,.4)"  # neither black nor white: seen on a light page and on a dark one
_CELL = f"border:{_BORDER};padding:.2em .6em;text-align:left;vertical-align:top;background:transparent"
_TABLE = "border-collapse:collapse;color:inherit;background:transparent"
_FILLED = "display:block;height:100%;background:rgba(128,128,128,.6)"
_BAR = f"display:inline-block;width:6em;height:.6em;margin:0 .4em;border:{_BORDER}"


class Shown(Protocol):
    """What tells facts of itself."""

    def _facts(self) -> Mapping[str, Any]: ...


class Words(str):
    """Text that is shown as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Parts(tuple[Any, ...]):
    """The parts of an ensemble: each shown by itself, under its number."""

    __slots__ = ()


def text_of(thing: Shown, *, lines: bool = False) -> str:
    """The facts of an object as ``Name(fact=value, ...)``. O(facts).

    Args:
        thing: the object.
        lines: each fact on a line of its own.

    Example:
        >>> class Box:
        ...     def _facts(self):
        ...         return {"len": 3, "memory": memory(1500)}
        >>> text_of(Box())
        'Box(len=3, memory=1.5 kB)'
    """
    name = _name(thing)
    shown = [f"{fact}={told(value)}" if fact else told(value) for fact, value in _each(thing)]
    if not lines:
        return f"{name}({', '.join(shown)})"
    return (
        f"{name}(\n" + "".join(f"    {fact},\n".replace("\n", "\n    ").rstrip(" ") for fact in shown) + ")"
    )


def html_of(thing: Shown) -> str:
    """The facts of an object as a table for a notebook, a line for each part that has none itself. O(facts).

    All text is escaped. Colours are the page's own.
    """
    return f'<div style="font-size:90%">{_table(thing)}</div>'


def memory(number: float) -> Words:
    """Bytes, for people."""
    return Words(size(number))


def keys(paths: Sequence[Any]) -> Words:
    """Keys of entries, the first few of them.

    >>> keys([("next", "reward"), "action"])
    [next/reward, action]
    """
    names = [key if isinstance(key, str) else "/".join(map(str, key)) for key in paths]
    more = f", {len(names) - MOST_KEYS} more" if len(names) > MOST_KEYS else ""
    return Words(f"[{', '.join(names[:MOST_KEYS])}{more}]")


def _name(thing: Shown) -> str:
    """Its class, by the name that users know."""
    return str(getattr(type(thing), "_known_as", type(thing).__name__))


def _each(thing: Shown) -> list[tuple[str, Any]]:
    """Its facts, parts of ensembles one by one."""
    try:
        found: list[tuple[str, Any]] = []
        for fact, value in thing._facts().items():
            if not isinstance(value, Parts):
                found.append((fact, value))
                continue
            found += [("", part) for part in value[:MOST_PARTS]]
            if len(value) > MOST_PARTS:
                found.append(("", Words(f"{len(value) - MOST_PARTS} more")))
        return found
    except Exception as error:
        return [("", Words(f"cannot be shown: {type(error).__name__}"))]


def told(value: Any) -> str:
    """The repr of any object, its transform's for instance; never raises."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def _table(thing: Shown) -> str:
    rows = [f'<tr><th colspan="2" style="{_CELL}">{escape(_name(thing))}</th></tr>']
    facts = _each(thing)
    for fact, value in facts:
        label = f'<th style="{_CELL}">{escape(fact)}</th>' if fact else ""
        wide = "" if fact else ' colspan="2"'
        rows.append(f'<tr>{label}<td style="{_CELL}"{wide}>{_cell(fact, value, facts)}</td></tr>')
    return f'<table style="{_TABLE}">{"".join(rows)}</table>'


def _cell(fact: str, value: Any, beside: list[tuple[str, Any]]) -> str:
    """A fact, as HTML."""
    if not callable(getattr(value, "_facts", None)):
        text = value if isinstance(value, str) else told(value)
        if isinstance(value, int) and not isinstance(value, bool):
            text = f"{value:,}"
            if fact == "len":
                return text + _bar(value, dict(beside).get("max_size"))
        return escape(text)
    facts = _each(value)
    if any(callable(getattr(part, "_facts", None)) for _, part in facts):
        return _table(value)
    name = f"<b>{escape(_name(value))}</b>"
    return ", ".join([name, *(f"{escape(fact)} {_cell(fact, one, facts)}".strip() for fact, one in facts)])


def _bar(number: int, of: Any) -> str:
    """How full it is."""
    if isinstance(of, bool) or not isinstance(of, int) or of <= 0:
        return ""
    part = min(100.0, 100 * number / of)
    filled = (
        f'<span style="display:block;width:{part:.0f}%;height:100%;background:rgba(128,128,128,.6)"></span>'
    )
    return f'<span style="{_BAR}" title="{part:.0f} % of {of:,}">{filled}</span>'

"""What a person reads: tables with rich in a terminal, the same in plain text anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print a table on standard output. O(cells).

    Args:
        title: line above it.
        rows: cells; all rows have as many.
        header: names of the columns; none for a list of facts.

    Example:
        >>> table("Arm", [("episodes", "40"), ("steps", "1,562")])
        <BLANKLINE>
        Arm
          episodes  40
          steps     1,562
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(title, cells, header)
        return
    lines = [list(header), *cells] if header else cells
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    print(f"\n{title}")
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(("  " + "  ".join(padded)).rstrip())


def line(text: str) -> None:
    """Print one line on standard output."""
    print(printable(text), flush=True)


def printable(text: str) -> str:
    r"""Text without what would move a terminal's cursor or colour it: datasets hold any string.

    Example:
        >>> printable("pick\x1b[31m up\n")
        'pick\\x1b[31m up\\n'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: float) -> str:
    """A whole number with its thousands marked."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes in the unit that people use.

    Example:
        >>> size(999), size(3_475_142), size(39.1e9)
        ('999 B', '3.5 MB', '39.1 GB')
    """
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.95 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def short(text: str, length: int = 72) -> str:
    """Text on one line of at most ``length`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _rich_table(title: str, cells: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(show_header=bool(header))
    for name in header or [""] * (len(cells[0]) if cells else 0):
        made.add_column(name, overflow="fold")
    for row in cells:
        # Text, not str: square brackets in the data are no markup.
        made.add_row(*(Text(cell) for cell in row))
    console = Console()
    console.print(Text(f"\n{title}", style="bold"), made)

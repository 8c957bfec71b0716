"""What people see on the terminal: tables, amounts, and JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streams.money import render

Cell = str | int | None


def console() -> Console:
    """Standard output; wide enough to keep rows on one line where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False, soft_wrap=False)


def say(text: str, *, style: str = "") -> None:
    """One line; what it contains is never taken for markup."""
    console().print(Text(text, style=style), soft_wrap=True)


def say_json(value: object) -> None:
    """One JSON object on one line; what JSON lacks (times, paths, decimals) becomes text."""
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int = 1) -> None:
    """A table; the first `left` columns hold text, the others numbers, set to the right."""
    shown = Table(title=title or None, title_justify="left", header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if cell is None else _cell(cell)) for cell in row))
    console().print(shown)


def _cell(cell: str | int) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell


def amount(minor: int | None, currency: str | None) -> str:
    """An amount as people read it: `21,228,993.60 CZK`; empty where there is none."""
    if minor is None or currency is None:
        return ""
    return f"{Decimal(render(minor, currency)):,} {currency}"


def moment(at: datetime | None) -> str:
    """A time to the second, in its own zone with the offset; empty for none."""
    return "" if at is None else at.isoformat(sep=" ", timespec="seconds")

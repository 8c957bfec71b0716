"""SQL statements by name: `statement("feed/next_rows")` is the text of `sinks/sql/feed/next_rows.sql`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, LiteralString, cast

_FOLDER = Path(__file__).parent / "sql"


@cache
def statement(name: str) -> LiteralString:
    """The statement's text; parameters are `%(name)s`. Raises `FileNotFoundError` for an unknown name."""
    # Our own file, never input: psycopg asks for a literal so that nobody builds SQL from data.
    text: Any = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    return cast("LiteralString", text)

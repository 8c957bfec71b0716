"""SQL statements by name: `statement("feed/next_rows")` is the text of `sinks/sql/feed/next_rows.sql`.

A line `--include part/filter` stands for the text of `sinks/sql/part/filter.sql`: what several statements must mean
alike, written once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, LiteralString, cast

_FOLDER = Path(__file__).parent / "sql"
_INCLUDE = re.compile(r"^--include ([a-z_]+/[a-z_]+)\n", re.MULTILINE)


@cache
def statement(name: str) -> LiteralString:
    """The statement's text; parameters are `%(name)s`. Raises `FileNotFoundError` for an unknown name."""
    # Our own files, never input: psycopg asks for a literal so that nobody builds SQL from data.
    text: Any = _INCLUDE.sub(lambda found: _read(found[1]), _read(name))
    return cast("LiteralString", text)


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")

"""Statements by name, and the parts that several of them share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinks import statement as module
from sinks.statement import statement

SQL = Path(module.__file__).parent / "sql"


def test_a_part_stands_in_each_statement_that_names_it() -> None:
    """What is listed, exported, replayed and cancelled by a filter is chosen by the same conditions."""
    conditions = (SQL / "part" / "filter.sql").read_text()
    for name in (
        "dead/list",
        "dead/groups",
        "dead/pick",
        "dead/export_csv",
        "dead/export_jsonl",
        "cancel/pick",
    ):
        assert conditions in statement(name)


@pytest.mark.parametrize(
    "path", sorted(SQL.rglob("*.sql")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_statement_is_whole(path: Path) -> None:
    """No part is missing, and none names a part in its turn, which nobody would put in."""
    assert "--include" not in statement(f"{path.parent.name}/{path.stem}")


def test_every_part_is_used() -> None:
    """A part that nobody names is none."""
    named = {
        found
        for path in SQL.rglob("*.sql")
        for found in re.findall(r"^--include (\S+)$", path.read_text(), re.MULTILINE)
    }
    assert named == {f"part/{path.stem}" for path in (SQL / "part").glob("*.sql")}

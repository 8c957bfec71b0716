"""What people see on the terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from madeira import show


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (2_122_899_360, "CZK", "21,228,993.60 CZK"),
        (5, "CZK", "0.05 CZK"),
        (-1_234_56, "EUR", "-1,234.56 EUR"),
        (1_234_567, "JPY", "1,234,567 JPY"),
        (0, "CZK", "0.00 CZK"),
        (None, "CZK", ""),
        (100, None, ""),
    ],
)
def test_amounts(minor: int | None, currency: str | None, text: str) -> None:
    """The currency's decimals, thousands apart, nothing where there is none."""
    assert show.amount(minor, currency) == text


def test_a_small_debt_keeps_its_sign() -> None:
    """Less than one unit below zero is still below zero."""
    assert show.amount(-5, "CZK") == "-0.05 CZK"


def test_moments() -> None:
    """To the second, with the offset."""
    assert show.moment(datetime(2026, 3, 2, 1, 15, 0, 999, tzinfo=UTC)) == "2026-03-02 01:15:00+00:00"
    assert show.moment(datetime(2026, 3, 2, 1, 15, tzinfo=timezone(timedelta(hours=1)))).endswith("+01:00")
    assert show.moment(None) == ""


def test_text_of_others_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets stay what they are, and long lines are not broken."""
    show.say("[red]" + "x" * 300)
    assert capsys.readouterr().out == "[red]" + "x" * 300 + "\n"


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers with thousands apart, text as it is, nothing for nothing."""
    show.table("title", ("name", "count", "note"), [("[b]", 12_345, None)])
    out = capsys.readouterr().out
    for part in ("title", "name", "[b]", "12,345"):
        assert part in out
    assert "None" not in out


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Times, decimals and paths become text; amounts lose no zero."""
    show.say_json({"at": datetime(2026, 3, 2, tzinfo=UTC), "amount": Decimal("1.10"), "path": Path("a/b")})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"at": "2026-03-02T00:00:00Z", "amount": "1.10", "path": "a/b"}

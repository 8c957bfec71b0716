"""What `madeira reconcile` shows on the terminal."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from pathlib import Path

from rich.console import Console

from madeira.reconciliation import shown
from pipelines.balance import Category, SummaryLine, Verdict
from pipelines.manifest import Sum
from pipelines.reconcile import ReconcileResult


def text(*, partner: str | None, problems: tuple[str, ...], verdict: Verdict) -> str:
    """The rendered lines of a result with one line of totals."""
    categories = {category: Sum() for category in Category} | {Category.DELIVERED: Sum(1234, 245_200_099)}
    line = SummaryLine(
        partner, "CZK", Sum(1234, 245_200_099), categories, Sum(), verdict is not Verdict.OUT_OF_BALANCE
    )
    result = ReconcileResult(
        business_date=date(2026, 11, 30),
        as_of=datetime(2026, 12, 1, 5, 30, tzinfo=UTC),
        verdict=verdict,
        directory=Path("reports/2026-11-30/r3"),
        revision=3,
        totals=(line,),
        problems=problems,
    )
    console = Console(file=io.StringIO(), width=200)
    console.print(shown(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_closed_day_shows_counts_amounts_and_files() -> None:
    """The exact amount with its decimals, the moment, the folder."""
    found = text(partner="AB", problems=(), verdict=Verdict.CLOSED)
    for part in ("AB", "1,234", "2,452,000.99", "closed", "2026-12-01 05:30:00 UTC", "reports/2026-11-30/r3"):
        assert part in found


def test_problems_are_listed_and_bounded() -> None:
    """Ten are shown, the rest counted; a row that doesn't balance says NO."""
    problems = tuple(f"problem number {n} of many" for n in range(12))
    found = text(partner=None, problems=problems, verdict=Verdict.OUT_OF_BALANCE)
    assert found.count("of many") == 10
    for part in ("TOTAL", "DOES NOT BALANCE", "and 2 more in manifest.json", "NO"):
        assert part in found


def test_text_of_others_is_shown_as_it_is() -> None:
    """Square brackets in a sentence are no markup."""
    assert "[red]x[/red]" in text(partner="AB", problems=("[red]x[/red]",), verdict=Verdict.OPEN)

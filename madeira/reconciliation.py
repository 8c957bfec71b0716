"""A reconciliation on the terminal: who got how much, the verdict, and where the files are."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipelines.balance import Category, Verdict, decimal
from pipelines.manifest import Sum
from pipelines.reconcile import ReconcileResult

_STYLE = {Verdict.CLOSED: "bold green", Verdict.OPEN: "bold yellow", Verdict.OUT_OF_BALANCE: "bold red"}
_WORDS = {
    Verdict.CLOSED: "closed: every item has come to its end and everything agrees",
    Verdict.OPEN: "open items",
    Verdict.OUT_OF_BALANCE: "DOES NOT BALANCE",
}
_SHOWN_PROBLEMS = 10


def shown(result: ReconcileResult) -> RenderableType:
    """A table with a row for each partner and currency, the verdict with its reasons, the folder of the files."""
    return Group(_table(result), *_lines(result))


def _table(result: ReconcileResult) -> Table:
    table = Table(title=f"{result.business_date.isoformat()}, as of {result.as_of:%Y-%m-%d %H:%M:%S} UTC")
    table.add_column("partner")
    table.add_column("currency")
    for name in ("batch", *Category, "maybe twice"):
        table.add_column(str(name), justify="right")
    table.add_column("balance", justify="center")
    for line in result.totals:
        sums = (line.batch, *(line.categories[category] for category in Category), line.possible_duplicates)
        table.add_row(
            Text(line.partner if line.partner is not None else "TOTAL"),
            line.currency,
            *(_cell(value, line.currency) for value in sums),
            "yes" if line.in_balance else Text("NO", style="bold red"),
            style="bold" if line.partner is None else "",
        )
    return table


def _cell(value: Sum, currency: str) -> str:
    if not value.count:
        return "-"
    return f"{value.count:,}\n{decimal(value.minor, currency):,f}" if currency else f"{value.count:,}"


def _lines(result: ReconcileResult) -> Iterator[Text]:
    yield Text(_WORDS[result.verdict], style=_STYLE[result.verdict])
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        yield Text(f"  {problem}")
    if len(result.problems) > _SHOWN_PROBLEMS:
        yield Text(f"  and {len(result.problems) - _SHOWN_PROBLEMS} more in manifest.json")
    yield Text(f"files: {result.directory}")

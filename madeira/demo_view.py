"""How the demo looks: the board while the night lasts, and the three books at its end."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from madeira.demo_count import BankCount, Counts, Progress
from madeira.demo_stage import CURRENCY, DemoBank
from pipelines.manifest import Sum
from streams.money import render

_RATE_OVER_S = 4.0
_LINE_EVERY_S = 5.0
_ROOMY = 112
"""Columns of a terminal from which on both tables show everything."""


class Rates:
    """Sends a second per partner, over the last four seconds of what was read."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def add(self, partner: str, at_s: float, sends: int) -> float:
        """Note a reading and return the rate; 0 in the first second, from which nothing can be told."""
        seen = self._seen.setdefault(partner, deque())
        seen.append((at_s, sends))
        while len(seen) > 2 and at_s - seen[1][0] >= _RATE_OVER_S:
            seen.popleft()
        first_s, first = seen[0]
        return (sends - first) / (at_s - first_s) if at_s - first_s >= 1 else 0.0


class View:
    """Speaks to a person: on a terminal a living board, elsewhere a plain line every few seconds.

    With `--json` all of it goes to standard error, so that standard output holds the one object.
    """

    def __init__(self, banks: Sequence[DemoBank], *, to_stderr: bool) -> None:
        file = sys.stderr if to_stderr else sys.stdout
        self.console = Console(file=file, width=None if file.isatty() else 140, highlight=False)
        self._banks = banks
        self._live: Live | None = None
        self._rates = Rates()
        self._line_due_s = 0.0

    def title(self, text: str) -> None:
        """A heading over the whole width."""
        self.console.print()
        self.console.print(Rule(Text(text, style="bold"), align="left", style="dim"))

    def fact(self, name: str, text: str, *, style: str = "") -> None:
        """One fact: a name and a sentence."""
        line = Text(f"  {name:<10}", style="dim")
        line.append(text, style=style or "default")
        self.console.print(line, soft_wrap=True)

    def command(self, text: str, explained: str = "") -> None:
        """A command as somebody would type it."""
        line = Text("  $ ", style="dim").append(text, style="bold cyan")
        if explained:
            line.append(f"  # {explained}", style="dim")
        self.console.print(line, soft_wrap=True)

    def show(self, progress: Mapping[str, Progress], elapsed_s: float) -> None:
        """How far the night is."""
        rates = {
            bank.name: self._rates.add(bank.name, elapsed_s, progress[bank.name].sends)
            for bank in self._banks
            if bank.name in progress
        }
        total = sum(progress.values(), Progress(""))
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, transient=True, auto_refresh=False)
                self._live.start()
            self._live.update(self.board(progress, rates, elapsed_s), refresh=True)
        elif elapsed_s >= self._line_due_s:
            self._line_due_s = elapsed_s + _LINE_EVERY_S
            rate = sum(rates.values())
            to_go = f", {_eta(total, rate)} to go" if total.done < total.orders and rate >= 1 else ""
            said = (
                f"{total.done:,} of {total.orders:,} done, {rate:.0f} sends/s, {total.retrying:,} retrying, "
                f"{total.dead:,} dead{to_go}"
            )
            self.fact(f"{elapsed_s:.0f} s", said if total.orders else "the scheduler loads the batch")

    def end(self) -> None:
        """Take the board away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def board(
        self, progress: Mapping[str, Progress], rates: Mapping[str, float], elapsed_s: float
    ) -> RenderableType:
        """Every bank's bar, its rate against what it agreed to, and what is left; and all of them together."""
        total = sum(progress.values(), Progress(""))
        roomy = self.console.width >= _ROOMY
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_footer=True)
        table.add_column("bank", "all")
        table.add_column("", _bar(total, roomy=roomy))
        table.add_column("done", _of(total.done, total.orders), justify="right")
        agreed = sum(bank.qps for bank in self._banks)
        rate = sum(rates.values())
        table.add_column("sends/s", _rate(rate, agreed), justify="right")
        table.add_column("to go", _eta(total, rate), justify="right", min_width=5)
        table.add_column("retry", _some(total.retrying, "yellow"), justify="right", min_width=5)
        table.add_column("dead", _some(total.dead, "red"), justify="right", min_width=4)
        if roomy:
            table.add_column(
                "what is difficult", f"{elapsed_s:.0f} s", style="dim", footer_style="dim", no_wrap=True
            )
        for bank in self._banks:
            now = progress.get(bank.name, Progress(bank.name))
            over = now.orders > 0 and now.done == now.orders
            cells: list[RenderableType] = [
                Text(bank.name, style="green" if over else "bold"),
                _bar(now, roomy=roomy),
                _of(now.done, now.orders),
                Text("") if over else _rate(rates.get(bank.name, 0.0), bank.qps),
                Text("done", style="green") if over else _eta(now, rates.get(bank.name, 0.0)),
                _some(now.retrying, "yellow"),
                _some(now.dead, "red"),
            ]
            if roomy:
                cells.append(bank.difficulty)
            table.add_row(*cells)
        return Group(Text(), table)

    # -- the end --------------------------------------------------------------------------------------------

    def books(self, counts: Counts) -> None:
        """The three counts side by side, per bank and in total."""
        roomy = self.console.width >= _ROOMY
        total = counts.total()
        columns = _columns(roomy=roomy, with_open=roomy and total.open.count > 0)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), show_footer=True)
        table.header_style = table.footer_style = "bold"
        for number, column in enumerate(columns):
            table.add_column(
                column.head,
                column.cell(total),
                style=column.style,
                justify="right" if number else "left",
                no_wrap=True,
            )
        for bank in counts.banks:
            table.add_row(*(column.cell(bank) for column in columns))
        self.console.print(table)

    def verdict(self, text: str, *, good: bool) -> None:
        """The sentence that matters."""
        self.console.print(Text(f"  {'✓' if good else '✗'} {text}", style="green" if good else "bold red"))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the three books."""

    head: str
    cell: Callable[[BankCount], Text]
    style: str = ""


def _columns(*, roomy: bool, with_open: bool) -> list[_Column]:
    """The three books; a narrow terminal shows of ours only how many are delivered and dead."""
    delivered = [_Column(f"\n{CURRENCY}", lambda bank: Text(money(bank.delivered)))]
    opened = [_Column("\nopen", lambda bank: _some(bank.open.count, "yellow"))]
    more = [
        _Column("sent\nagain", lambda bank: _some(len(bank.repeated), "yellow")),
        _Column("busiest\nsecond", _busiest),
    ]
    return [
        _Column("\nbank", lambda bank: Text(bank.name)),
        _Column("asked\nbatch", lambda bank: Text(f"{bank.source.count - bank.live.count:,}"), "cyan"),
        _Column("\nlive", lambda bank: Text(f"{bank.live.count:,}"), "cyan"),
        _Column(f"\n{CURRENCY}", lambda bank: Text(money(bank.source)), "cyan"),
        _Column("Madeira\npaid", lambda bank: Text(f"{bank.delivered.count:,}")),
        *(delivered if roomy else []),
        _Column("\ndead", lambda bank: _some(bank.dead.count, "red")),
        *(opened if with_open else []),
        _Column("bank\nbooked", lambda bank: Text(f"{bank.accepted.count:,}"), "magenta"),
        _Column(f"\n{CURRENCY}", lambda bank: Text(money(bank.accepted)), "magenta"),
        *(more if roomy else []),
        _Column(
            "\nsame",
            lambda bank: Text("yes", style="green") if bank.agrees else Text("NO", style="bold red"),
        ),
    ]


def _busiest(bank: BankCount) -> Text:
    if not bank.most_per_second:
        return Text("")
    over = bank.most_per_second > bank.qps
    return Text(f"{bank.most_per_second} / {bank.qps}", style="bold red" if over else "")


def money(value: Sum) -> str:
    """An amount for people, without its currency: `21,228,993.60`."""
    whole, point, cents = render(value.minor, CURRENCY).partition(".")
    return f"{int(whole):,}{point}{cents}"


def _bar(now: Progress, *, roomy: bool) -> ProgressBar:
    return ProgressBar(
        total=max(1, now.orders),
        completed=now.done,
        width=26 if roomy else 12,
        complete_style="cyan",
        finished_style="green",
    )


def _of(done: int, orders: int) -> Text:
    return Text(f"{done:,}").append(f" / {orders:,}", style="dim")


def _rate(rate: float, agreed: int) -> Text:
    return Text(f"{rate:.1f}" if rate else "").append(f" / {agreed}", style="dim")


def _eta(now: Progress, rate: float) -> str:
    left = now.orders - now.done
    if not left or rate < 1:
        return ""
    seconds = round(left / rate)
    return f"{seconds // 60}:{seconds % 60:02}"


def _some(number: int, style: str) -> Text:
    return Text(f"{number:,}", style=style) if number else Text("")


def near(path: Path) -> str:
    """A path as somebody in this directory would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)

"""What the demo counts: how far the night is, and at its end the source, Madeira and the banks side by side."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import msgspec
import psycopg
from psycopg.rows import class_row

from madeira.bank_ledger import Summary, Totals
from madeira.demo_shop import read_book
from madeira.demo_stage import JOB, DemoBank, DemoFailed
from pipelines.manifest import NOTHING, Sum
from sinks.statement import statement


@dataclass(frozen=True, slots=True)
class Progress:
    """One partner by the record, now. `sends` are the attempts whose outcome is recorded."""

    partner: str
    orders: int = 0
    delivered: int = 0
    retrying: int = 0
    dead: int = 0
    pending: int = 0
    sends: int = 0

    @property
    def done(self) -> int:
        """Deliveries that have come to their end."""
        return self.delivered + self.dead

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            "",
            self.orders + other.orders,
            self.delivered + other.delivered,
            self.retrying + other.retrying,
            self.dead + other.dead,
            self.pending + other.pending,
            self.sends + other.sends,
        )


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some of a partner's orders are dead; `example` is one of them, as `madeira trace` takes it."""

    partner: str
    reason: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class BankCount:
    """One bank by three books. `repeated` are ids that came again after the bank had accepted them.

    `source` is what was asked for, by accounting and by the shop; `live` is the shop's part of it, `live_found` what
    Madeira has of that, `live_dead` the part of it that is dead. `most_per_second` is by the workers' stamps, over
    any sliding second.
    """

    name: str
    qps: int
    source: Sum
    live: Sum
    live_found: Sum
    live_dead: Sum
    delivered: Sum
    dead: Sum
    open: Sum
    accepted: Sum
    repeated: tuple[str, ...]
    other_body: tuple[str, ...]
    most_per_second: int

    @property
    def agrees(self) -> bool:
        """To the cent: what was asked for is accounted for, and the bank has what we say it has, each once."""
        accounted = self.delivered + self.dead + self.open
        return (
            self.source == accounted
            and self.live == self.live_found
            and self.delivered == self.accepted
            and not self.other_body
        )


@dataclass(frozen=True, slots=True)
class Live:
    """How long the first sends of live events took from their 202: how many, median and 99th percentile in ms.

    Those for banks that were away for a while are apart: how many, and the longest.
    """

    sent: int = 0
    median_ms: int = 0
    p99_ms: int = 0
    sent_away: int = 0
    longest_away_ms: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """All banks, the dead by reason, the live lane's speed, and whether everything agrees.

    `posted_twice` are events that the shop posted a second time on purpose.
    """

    banks: tuple[BankCount, ...]
    reasons: tuple[Reason, ...]
    waited: Live = Live()
    posted_twice: int = 0

    @property
    def balanced(self) -> bool:
        """Every bank agrees."""
        return all(bank.agrees for bank in self.banks)

    @property
    def over_qps(self) -> float:
        """The most that any bank got in a second, over what it agreed to; 1.0 is exactly that."""
        return max((bank.most_per_second / bank.qps for bank in self.banks), default=0.0)

    def total(self) -> BankCount:
        """The sum over all banks; its `qps` is what they all take together, its busiest second means nothing."""
        banks = self.banks
        return BankCount(
            name="TOTAL",
            qps=sum(bank.qps for bank in banks),
            source=_sum(bank.source for bank in banks),
            live=_sum(bank.live for bank in banks),
            live_found=_sum(bank.live_found for bank in banks),
            live_dead=_sum(bank.live_dead for bank in banks),
            delivered=_sum(bank.delivered for bank in banks),
            dead=_sum(bank.dead for bank in banks),
            open=_sum(bank.open for bank in banks),
            accepted=_sum(bank.accepted for bank in banks),
            repeated=tuple(each for bank in banks for each in bank.repeated),
            other_body=tuple(each for bank in banks for each in bank.other_body),
            most_per_second=0,
        )


def read_progress(record: psycopg.Connection) -> dict[str, Progress]:
    """Every partner that has deliveries."""
    with record.cursor(row_factory=class_row(Progress)) as cursor:
        return {row.partner: row for row in cursor.execute(statement("demo/progress"))}


def read_run(record: psycopg.Connection, business_date: date) -> tuple[str, str] | None:
    """The scheduler's run of the job: its state and what it says; None before it began."""
    row = record.execute(statement("demo/run"), {"job": JOB, "business_date": business_date}).fetchone()
    return None if row is None else (row[0], row[1])


def read_source(accounting_url: str) -> dict[str, Sum]:
    """What accounting wants paid, per bank, asked of accounting."""
    with psycopg.connect(accounting_url) as connection:
        rows = connection.execute(statement("demo/source_totals")).fetchall()
    return {bank: Sum(count, minor) for bank, count, minor in rows}


def read_shop(book: Path) -> dict[str, Sum]:
    """What the shop wants paid, per bank, by its own book."""
    sums: dict[str, Sum] = {}
    for sale in read_book(book):
        sums[sale.bank] = sums.get(sale.bank, NOTHING) + Sum(1, sale.minor)
    return sums


def read_ledger(port: int) -> Summary:
    """What the banks say that they received. Raises `DemoFailed`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/_ledger")
        return msgspec.json.decode(connection.getresponse().read(), type=Summary)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise DemoFailed(f"the banks do not show their ledger: {error}") from error
    finally:
        connection.close()


def count(
    record: psycopg.Connection,
    *,
    source: Mapping[str, Sum],
    book: Path,
    ledger: Summary,
    banks: Sequence[DemoBank],
) -> Counts:
    """The three books side by side. A bank that only one of them knows is shown, too: it must be seen."""
    places: dict[tuple[str, str], Sum] = {}
    live_found: dict[str, Sum] = {}
    live_dead: dict[str, Sum] = {}
    for partner, is_live, place, number, minor in record.execute(statement("demo/totals")):
        found = Sum(number, minor)
        places[partner, place] = places.get((partner, place), NOTHING) + found
        if is_live:
            live_found[partner] = live_found.get(partner, NOTHING) + found
            if place == "dead":
                live_dead[partner] = found
    live = read_shop(book)
    busiest: dict[str, int] = dict(record.execute(statement("demo/busiest")).fetchall())
    with record.cursor(row_factory=class_row(Live)) as cursor:
        waited = cursor.execute(statement("demo/live")).fetchone() or Live()
    with record.cursor(row_factory=class_row(Reason)) as cursor:
        reasons = tuple(cursor.execute(statement("demo/dead")))
    agreed = {bank.name: bank.qps for bank in banks}
    known = {*source, *live, *ledger.banks, *(partner for partner, _ in places)}
    names = [*agreed, *sorted(known - agreed.keys())]
    lines = []
    for name in names:
        said = ledger.banks.get(name, Totals())
        lines.append(
            BankCount(
                name=name,
                qps=agreed.get(name, 1),
                source=source.get(name, NOTHING) + live.get(name, NOTHING),
                live=live.get(name, NOTHING),
                live_found=live_found.get(name, NOTHING),
                live_dead=live_dead.get(name, NOTHING),
                delivered=places.get((name, "delivered"), NOTHING),
                dead=places.get((name, "dead"), NOTHING),
                open=places.get((name, "open"), NOTHING),
                accepted=Sum(said.accepted, said.accepted_minor),
                repeated=tuple(said.duplicates),
                other_body=tuple(said.other_body),
                most_per_second=busiest.get(name, 0),
            )
        )
    twice = sum(sale.repeated for sale in read_book(book))
    return Counts(tuple(lines), reasons, waited, twice)


def _sum(sums: Iterable[Sum]) -> Sum:
    return sum(sums, NOTHING)

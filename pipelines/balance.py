"""Whether a business date adds up: manifest against loaded against final. Pure; amounts are minor units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from pipelines.manifest import Line, Sum
from streams.money import to_decimal


class Category(StrEnum):
    """Where an item is now; every item is in exactly one."""

    DELIVERED = "delivered"
    RETRYING = "retrying"
    DEAD = "dead"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    OPEN = "open"


UNSETTLED = frozenset({Category.RETRYING, Category.UNKNOWN, Category.OPEN})
"""What keeps a day open: it may still be sent, or somebody has to ask the partner whether it arrived."""


class Verdict(StrEnum):
    """What finance may conclude. Closed: all is delivered, dead or cancelled, and everything agrees."""

    CLOSED = "closed"
    OPEN = "open"
    OUT_OF_BALANCE = "out_of_balance"

    @property
    def exit_code(self) -> int:
        """0 closed, 1 open items, 2 does not balance."""
        return {Verdict.CLOSED: 0, Verdict.OPEN: 1, Verdict.OUT_OF_BALANCE: 2}[self]


def decimal(minor: int, currency: str) -> Decimal:
    """The amount with all its decimals; none without a currency. Raises `streams.money.MoneyError`."""
    return to_decimal(minor, currency) if currency else Decimal(minor)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of the business date. `superseded`: a later revision of the same job and date exists.

    `ids_sha256` is the manifest's (see `pipelines.manifest`), `found_ids_sha256` the same over the record's
    events; empty where it can't be compared: what an earlier batch loaded is not among this one's events.
    """

    id: int
    job: str
    revision: int
    state: str
    superseded: bool
    expected_count: int
    loaded_count: int
    already_known: int
    ids_sha256: str
    found_ids_sha256: str
    snapshot_at: datetime | None
    released_at: datetime | None
    failure: str
    manifest: tuple[Line, ...]

    @property
    def name(self) -> str:
        """As an operator would say it: `payment-orders r1`."""
        return f"{self.job} r{self.revision}"

    @property
    def released(self) -> bool:
        """Whether its rows count: a failed or running batch has loaded none."""
        return self.state in {"released", "held"}


@dataclass(frozen=True, slots=True)
class Final:
    """Where items of one batch, partner and currency are in the record at the end."""

    batch_id: int
    partner: str
    currency: str
    category: Category
    possible_duplicate: bool
    sum: Sum


@dataclass(frozen=True, slots=True)
class BatchLine:
    """Manifest against loaded against final, for one partner and currency ("" in a batch that has none)."""

    batch: Batch
    partner: str
    currency: str
    expected: Sum
    already_known: Sum
    loaded: Sum
    final: Sum
    in_balance: bool


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One partner and currency, or with `partner` None all partners of a currency.

    `batch` is what the manifests say was loaded, `categories` what the deliveries say became of it.
    """

    partner: str | None
    currency: str
    batch: Sum
    categories: Mapping[Category, Sum]
    possible_duplicates: Sum
    in_balance: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """All lines, the verdict, and one sentence for each thing that keeps the day from being closed."""

    summary: tuple[SummaryLine, ...]
    batches: tuple[BatchLine, ...]
    verdict: Verdict
    problems: tuple[str, ...]


def balance(
    batches: Sequence[Batch], finals: Iterable[Final], duplicates: Sequence[str], *, date_text: str
) -> Balance:
    """Compare everything. `duplicates` are keys of events that have more than one delivery."""
    finals = tuple(finals)
    lines = tuple(line for batch in batches for line in _batch_lines(batch, finals))
    summary = _summary(lines, finals)
    wrong = [*_wrong_batches(batches), *_wrong_lines(lines, summary)]
    wrong += [f"{key} has more than one delivery" for key in duplicates]
    waiting = list(_waiting(batches, summary, date_text))
    unfinished = Verdict.OPEN if waiting else Verdict.CLOSED
    return Balance(summary, lines, Verdict.OUT_OF_BALANCE if wrong else unfinished, (*wrong, *waiting))


def _batch_lines(batch: Batch, finals: Sequence[Final]) -> Iterable[BatchLine]:
    final: defaultdict[tuple[str, str], Sum] = defaultdict(Sum)
    for item in finals:
        if item.batch_id == batch.id:
            final[item.partner, item.currency] += item.sum
    manifest = {(line.partner, line.currency): line for line in batch.manifest}
    # A final without a manifest is a line, too: it is exactly what must be seen.
    keys = sorted(manifest.keys() | final.keys()) or [("", "")]
    for partner, currency in keys:
        line = manifest.get((partner, currency), Line(partner, currency, Sum(), Sum(), Sum()))
        found = final[partner, currency]
        yield BatchLine(
            batch=batch,
            partner=partner,
            currency=currency,
            expected=line.expected,
            already_known=line.already_known,
            loaded=line.loaded,
            final=found,
            in_balance=_line_agrees(batch, line, found),
        )


def _line_agrees(batch: Batch, line: Line, final: Sum) -> bool:
    if not batch.released:
        return batch.superseded and final == Sum()
    return line.agrees and line.loaded == final


def _summary(lines: Sequence[BatchLine], finals: Sequence[Final]) -> tuple[SummaryLine, ...]:
    batch: defaultdict[tuple[str | None, str], Sum] = defaultdict(Sum)
    categories: defaultdict[tuple[str | None, str], defaultdict[Category, Sum]]
    categories = defaultdict(lambda: defaultdict(Sum))
    twice: defaultdict[tuple[str | None, str], Sum] = defaultdict(Sum)
    for line in lines:
        if line.partner:
            for key in ((line.partner, line.currency), (None, line.currency)):
                batch[key] += line.loaded if line.batch.released else Sum()
    for item in finals:
        for key in ((item.partner, item.currency), (None, item.currency)):
            categories[key][item.category] += item.sum
            if item.possible_duplicate:
                twice[key] += item.sum
    return tuple(
        SummaryLine(
            partner=key[0],
            currency=key[1],
            batch=batch[key],
            categories={category: categories[key][category] for category in Category},
            possible_duplicates=twice[key],
            in_balance=batch[key] == sum(categories[key].values(), Sum()),
        )
        for key in sorted(batch.keys() | categories.keys(), key=lambda k: (k[0] is None, k[0] or "", k[1]))
    )


def _wrong_batches(batches: Sequence[Batch]) -> Iterable[str]:
    for batch in batches:
        if not batch.released:
            if not batch.superseded:
                yield f"batch {batch.name} is {batch.state}"
            continue
        said = (batch.expected_count, batch.already_known, batch.loaded_count)
        lines = tuple(
            sum(figures)
            for figures in zip(
                *((m.expected.count, m.already_known.count, m.loaded.count) for m in batch.manifest),
                strict=True,
            )
        ) or (0, 0, 0)
        if said != lines:
            yield (
                f"batch {batch.name}: expected, already known and loaded are {said}, its lines say {lines}"
            )
        if batch.found_ids_sha256 not in {"", batch.ids_sha256}:
            yield f"batch {batch.name}: the ids in the record are not those of the manifest"


def _wrong_lines(lines: Sequence[BatchLine], summary: Sequence[SummaryLine]) -> Iterable[str]:
    for line in lines:
        if not line.in_balance and line.batch.released:
            parts = (
                ("expected", line.expected),
                ("already known", line.already_known),
                ("loaded", line.loaded),
                ("final", line.final),
            )
            figures = ", ".join(f"{name} {_say(value, line.currency)}" for name, value in parts)
            yield f"batch {line.batch.name}, {line.partner}: {figures}"
    for total in summary:
        if not total.in_balance and total.partner is not None:
            found = sum(total.categories.values(), Sum())
            yield (
                f"{total.partner}: batch {_say(total.batch, total.currency)}, "
                f"its categories together {_say(found, total.currency)}"
            )


def _waiting(batches: Sequence[Batch], summary: Sequence[SummaryLine], date_text: str) -> Iterable[str]:
    if not batches:
        yield f"no batch for {date_text}"
    for batch in batches:
        if batch.state == "held" and not batch.superseded:
            yield f"batch {batch.name} is held"
    for line in summary:
        for category in Category:
            if category in UNSETTLED and line.partner is not None and line.categories[category].count:
                yield f"{line.partner}: {category} {_say(line.categories[category], line.currency)}"


def _say(value: Sum, currency: str) -> str:
    return f"{value.count} ({decimal(value.minor, currency):f}{' ' if currency else ''}{currency})"

"""A business date's reconciliation: one snapshot, SQL's sums, files that agree with them, one verdict."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation, localcontext
from functools import partial
from itertools import groupby
from pathlib import Path

from psycopg.rows import TupleRow

from pipelines.balance import (
    Balance,
    Batch,
    Category,
    Final,
    SummaryLine,
    Verdict,
    balance,
    decimal,
)
from pipelines.manifest import Line, Sum
from pipelines.report import (
    FORMULA,
    INNER_FORMULA,
    Cell,
    Written,
    as_read,
    draft,
    guard,
    next_revision,
    publish,
    read_rows,
    read_table,
    write_rows,
    write_table,
)
from sinks.report_run import ReportRun, latest_revision, record_run
from sinks.snapshot import Snapshot, snapshot
from streams.delivery import Cause
from streams.errors import ReportMismatch, ReportNotWritten
from streams.money import MoneyError

_log = logging.getLogger(__name__)

SUMMARY = (
    "level", "business_date", "partner", "currency", "batch_count", "batch_amount",
    *(f"{category}_{figure}" for category in Category for figure in ("count", "amount")),
    "possible_duplicates_count", "possible_duplicates_amount", "in_balance",
)  # fmt: skip
BATCHES = (
    "batch_id", "job", "business_date", "revision", "state", "partner", "currency",
    "expected_count", "expected_amount", "already_known_count", "already_known_amount",
    "loaded_count", "loaded_amount", "final_count", "final_amount",
    "ids_sha256", "snapshot_at", "released_at", "failure", "in_balance",
)  # fmt: skip
_TOTAL = "TOTAL"
_TWICE = "possible_duplicate"


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What `madeira reconcile` says. `as_of` is UTC by PostgreSQL's clock; a closed day has no `problems`."""

    business_date: date
    as_of: datetime
    verdict: Verdict
    directory: Path
    revision: int
    totals: tuple[SummaryLine, ...]
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 closed, 1 open items, 2 does not balance."""
        return self.verdict.exit_code


@dataclass(frozen=True, slots=True)
class Day:
    """What SQL said about the business date, all of it as of one moment."""

    business_date: date
    as_of: datetime
    finals: tuple[Final, ...]
    balance: Balance


def reconcile(
    *, database_url: str, business_date: date, out: Path, as_of_recorder: Callable[[], None]
) -> ReconcileResult:
    """Write `out/<date>/r<n>/` and say whether the day is closed.

    `as_of_recorder` returns once the recorder has passed the outcomes that existed when it was called; what
    it raises ends the run. Raises `StoreUnavailable`, `ReportMismatch` when the written files don't agree with
    SQL, and `ReportNotWritten` when they can't be written; nothing is published then. Safe to run twice at once:
    each publishes a revision of its own.
    """
    as_of_recorder()
    folder_of_day = out / business_date.isoformat()
    try:
        with draft(folder_of_day) as folder:
            try:
                with snapshot(database_url, name="reconcile") as record:
                    day = look(record, business_date)
                    files = _write(folder, record, day)
            except MoneyError as error:
                raise ReportMismatch(f"the record holds an amount that can't be written: {error}") from error
            verify(folder, day)
            directory, revision = _publish(database_url, folder, folder_of_day, files, day)
    except OSError as error:
        # Not left to be a trace: its exit code, 1, would read as "open items".
        said = error.strerror or type(error).__name__
        raise ReportNotWritten(
            f"{folder_of_day} can't be written ({said}), no report was published: mend that, or name another "
            "folder with --out"
        ) from error
    _log.info(
        "reconciled",
        extra={
            "fields": {
                "business_date": business_date.isoformat(),
                "revision": revision,
                "verdict": day.balance.verdict.value,
                "items": files[-1].rows,
                "directory": str(directory),
            }
        },
    )
    return ReconcileResult(
        business_date=business_date,
        as_of=day.as_of,
        verdict=day.balance.verdict,
        directory=directory,
        revision=revision,
        totals=day.balance.summary,
        problems=day.balance.problems,
    )


def look(record: Snapshot, business_date: date) -> Day:
    """Sums, manifests and the verdict of one business date, as the snapshot sees them."""
    parameters = {"business_date": business_date, "unknown": Cause.UNKNOWN.value}
    finals = tuple(
        Final(batch_id, partner, currency, Category(category), twice, Sum(count, int(minor)))
        for batch_id, partner, currency, category, twice, count, minor in record.rows(
            "reconcile/totals", parameters
        )
    )
    duplicates = [key for _, key, _ in record.rows("reconcile/duplicates", parameters)]
    compared = balance(_batches(record, parameters), finals, duplicates, date_text=business_date.isoformat())
    return Day(business_date, record.as_of.astimezone(UTC), finals, compared)


def _batches(record: Snapshot, parameters: Mapping[str, object]) -> list[Batch]:
    batches = []
    for head, lines in groupby(record.rows("reconcile/batches", parameters), key=lambda row: row[:13]):
        manifest = tuple(
            Line(
                partner=partner,
                currency=currency,
                expected=Sum(expected, int(expected_minor)),
                already_known=Sum(known, int(known_minor)),
                loaded=Sum(loaded, int(loaded_minor)),
            )
            for partner, currency, expected, expected_minor, known, known_minor, loaded, loaded_minor in (
                row[13:] for row in lines
            )
            if partner is not None
        )
        batches.append(_batch(head, manifest))
    return batches


def _batch(head: TupleRow, manifest: tuple[Line, ...]) -> Batch:
    (
        number, job, revision, state, superseded, expected, loaded, known,
        ids, found_ids, snapshot_at, released_at, failure,
    ) = head  # fmt: skip
    return Batch(
        id=number,
        job=job,
        revision=revision,
        state=state,
        superseded=superseded,
        expected_count=expected,
        loaded_count=loaded,
        already_known=known,
        ids_sha256=ids,
        found_ids_sha256=found_ids,
        snapshot_at=snapshot_at,
        released_at=released_at,
        failure=failure,
        manifest=manifest,
    )


def _write(folder: Path, record: Snapshot, day: Day) -> list[Written]:
    currencies = sorted({final.currency for final in day.finals})
    parameters = {
        "business_date": day.business_date,
        "as_of": day.as_of,
        "unknown": Cause.UNKNOWN.value,
        "formula": FORMULA,
        "inner": INNER_FORMULA,
        "currencies": currencies,
        "units": [decimal(1, currency) for currency in currencies],
    }
    return [
        write_table(folder / "01_summary.csv", SUMMARY, _summary_rows(day)),
        write_table(folder / "02_batches.csv", BATCHES, _batch_rows(day)),
        write_rows(folder / "03_exceptions.csv", record.copy("reconcile/exceptions", parameters)),
        write_rows(folder / "04_items.csv.gz", record.copy("reconcile/items", parameters)),
    ]


def _pair(value: Sum, currency: str) -> tuple[int, Decimal]:
    return value.count, decimal(value.minor, currency)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _summary_rows(day: Day) -> list[list[Cell]]:
    return [
        [
            "total" if line.partner is None else "partner",
            day.business_date.isoformat(),
            _TOTAL if line.partner is None else line.partner,
            line.currency,
            *_pair(line.batch, line.currency),
            *(figure for category in Category for figure in _pair(line.categories[category], line.currency)),
            *_pair(line.possible_duplicates, line.currency),
            _yes(line.in_balance),
        ]
        for line in day.balance.summary
    ]


def _batch_rows(day: Day) -> list[list[Cell]]:
    return [
        [
            str(line.batch.id),
            line.batch.job,
            day.business_date.isoformat(),
            line.batch.revision,
            line.batch.state,
            line.partner,
            line.currency,
            *_pair(line.expected, line.currency),
            *_pair(line.already_known, line.currency),
            *_pair(line.loaded, line.currency),
            *_pair(line.final, line.currency),
            line.batch.ids_sha256,
            _instant(line.batch.snapshot_at),
            _instant(line.batch.released_at),
            line.batch.failure,
            _yes(line.in_balance),
        ]
        for line in day.balance.batches
    ]


def _instant(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Tally = dict[tuple[str, ...], tuple[int, Decimal]]


def verify(folder: Path, day: Day) -> None:
    """Read every file as a stranger would and compare with SQL's totals. Raises `ReportMismatch`."""
    for name, columns, rows in (
        ("01_summary.csv", SUMMARY, _summary_rows(day)),
        ("02_batches.csv", BATCHES, _batch_rows(day)),
    ):
        frame = read_table(folder / name)
        cells = [tuple(as_read(cell) for cell in row) for row in rows]
        if tuple(frame.columns) != columns or list(frame.itertuples(index=False, name=None)) != cells:
            raise ReportMismatch(f"{name} reads otherwise than it was written")
    summary = read_table(folder / "01_summary.csv").to_dict("records")
    batches = read_table(folder / "02_batches.csv").to_dict("records")
    for level in ("partner", "total"):
        found = _tally(
            (row["currency"], category, row[f"{category}_count"], row[f"{category}_amount"])
            for row in summary
            if row["level"] == level
            for category in Category
        )
        _agree("01_summary.csv", found, _expected(day, lambda f: (f.currency, f.category)))
    found = _tally(
        (r["batch_id"], guarded, r["currency"], r["final_count"], r["final_amount"])
        for r in batches
        if (guarded := r["partner"])
    )
    _agree("02_batches.csv", found, _expected(day, lambda f: (str(f.batch_id), guard(f.partner), f.currency)))

    def exception(final: Final) -> tuple[str, ...] | None:
        if final.category is not Category.DELIVERED:
            return guard(final.partner), final.currency, final.category, _yes(final.possible_duplicate)
        return (guard(final.partner), final.currency, _TWICE, "yes") if final.possible_duplicate else None

    columns = ("partner", "currency", "category", "possible_duplicate", "amount")
    found = _tally((*key, "1", amount) for *key, amount in read_rows(folder / "03_exceptions.csv", columns))
    _agree("03_exceptions.csv", found, _expected(day, exception))
    found = _tally(
        (*key, "1", amount) for *key, amount in read_rows(folder / "04_items.csv.gz", ("batch_id", *columns))
    )
    _agree(
        "04_items.csv.gz",
        found,
        _expected(
            day,
            lambda f: (str(f.batch_id), guard(f.partner), f.currency, f.category, _yes(f.possible_duplicate)),
        ),
    )


def _tally(rows: Iterable[Sequence[str]]) -> Tally:
    """Counts and exact sums by all cells but the last two, which are a count and an amount ("" is none)."""
    counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
    amounts: defaultdict[tuple[str, ...], Decimal] = defaultdict(Decimal)
    # Wide enough for any sum; one that would have to be rounded raises.
    with localcontext(Context(prec=60, traps=[Inexact, InvalidOperation])):
        for *cells, count, amount in rows:
            key = tuple(cells)
            counts[key] += int(count)
            if amount:
                amounts[key] += Decimal(amount)
    return {key: (count, amounts[key]) for key, count in counts.items() if count}


def _expected(day: Day, key_of: Callable[[Final], tuple[str, ...] | None]) -> Tally:
    return _tally(
        (*key, str(final.sum.count), f"{decimal(final.sum.minor, final.currency):f}")
        for final in day.finals
        if (key := key_of(final)) is not None
    )


def _agree(name: str, found: Tally, expected: Tally) -> None:
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            raise ReportMismatch(
                f"{name}, {'/'.join(key)}: the file holds {_words(found.get(key))}, "
                f"SQL says {_words(expected.get(key))}"
            )


def _words(total: tuple[int, Decimal] | None) -> str:
    return f"{total[0]} ({total[1]:f})" if total else "nothing"


def _publish(
    database_url: str, folder: Path, folder_of_day: Path, files: Sequence[Written], day: Day
) -> tuple[Path, int]:
    totals = [_total(line) for line in day.balance.summary]
    revision = max(next_revision(folder_of_day), latest_revision(database_url, day.business_date) + 1)
    while True:
        manifest = {
            "business_date": day.business_date.isoformat(),
            "revision": revision,
            "as_of": _instant(day.as_of),
            "verdict": day.balance.verdict.value,
            "problems": list(day.balance.problems),
            "totals": totals,
            "files": [
                {"name": file.name, "sha256": file.sha256, "bytes": file.size, "rows": file.rows}
                for file in files
            ],
        }
        run = ReportRun(
            business_date=day.business_date,
            revision=revision,
            as_of=day.as_of,
            verdict=day.balance.verdict.value,
            directory=str(folder_of_day / f"r{revision}"),
            totals=totals,
        )
        if record_run(database_url, run, partial(publish, folder, folder_of_day, revision, manifest)):
            return folder_of_day / f"r{revision}", revision
        revision += 1


def _total(line: SummaryLine) -> dict[str, object]:
    def pair(value: Sum) -> dict[str, object]:
        return {"count": value.count, "amount": f"{decimal(value.minor, line.currency):f}"}

    return {
        "partner": line.partner,
        "currency": line.currency,
        "batch": pair(line.batch),
        **{category.value: pair(line.categories[category]) for category in Category},
        "possible_duplicates": pair(line.possible_duplicates),
        "in_balance": line.in_balance,
    }

"""The morning's report on a real record: to the cent, whole, as of one moment."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from pipelines.balance import Verdict
from pipelines.reconcile import ReconcileResult, look, reconcile, verify
from sinks.snapshot import snapshot
from streams.checkpoint import ENVIRONMENT_NAME
from streams.errors import ReportMismatch, ReportNotWritten, StoreUnavailable

DAY = date(2026, 11, 30)
UNKNOWN = "unknown_confirm_first"


@dataclass(frozen=True)
class Item:
    """One row of a batch and what became of it."""

    event_id: str
    minor: int | None
    currency: str | None = "CZK"
    partner: str = "AB"
    status: str = "succeeded"
    cause: str | None = None
    reason: str | None = None
    twice: bool = False
    code: int | None = 200


def seed(
    url: str,
    items: Sequence[Item],
    *,
    job: str = "payment-orders",
    revision: int = 1,
    state: str = "released",
) -> int:
    """A batch of `items` with an honest manifest; returns its id."""
    hashed = hashlib.sha256("".join(f"{item.event_id}\n" for item in items).encode()).hexdigest()
    with psycopg.connect(url) as connection:
        row = connection.execute(
            """INSERT INTO batch (job, business_date, revision, state, expected_count, loaded_count, already_known,
                   ids_sha256, snapshot_at, released_at)
               VALUES (%s, %s, %s, %s::batch_state, %s, %s, 0, %s, now(), now()) RETURNING id""",
            (job, DAY, revision, state, len(items), len(items), hashed),
        ).fetchone()
        assert row
        for number, item in enumerate(items, start=1):
            connection.execute(
                """WITH e AS (
                       INSERT INTO event (source, event_id, event_type, body, body_sha256, trace_id, created_at,
                           batch_id, business_date, amount_minor, currency)
                       VALUES (%s, %s, 'payment', '{}', '', md5(%s), now() - interval '95 minutes', %s, %s, %s, %s)
                       RETURNING id)
                   INSERT INTO delivery (event, partner, status, possible_duplicate, attempts, row_number, batch_id,
                       last_status_code, updated_at, cause, last_error)
                   SELECT id, %s, %s::delivery_status, %s, 2, %s, %s, %s, now(), %s, %s FROM e""",
                (job, item.event_id, item.event_id, row[0], DAY, item.minor, item.currency,
                 item.partner, item.status, item.twice, number, row[0], item.code, item.cause, item.reason),
            )  # fmt: skip
        connection.execute(
            """INSERT INTO batch_total (batch_id, partner, currency, expected_count, expected_minor, loaded_count,
                   loaded_minor)
               SELECT e.batch_id, d.partner, coalesce(e.currency, ''), count(*), coalesce(sum(amount_minor), 0),
                   count(*), coalesce(sum(amount_minor), 0)
               FROM event AS e JOIN delivery AS d ON d.event = e.id WHERE e.batch_id = %s GROUP BY 1, 2, 3""",
            (row[0],),
        )
        return int(row[0])


def run(url: str, out: Path) -> ReconcileResult:
    """Reconcile the day with a recorder that is not behind."""
    return reconcile(database_url=url, business_date=DAY, out=out, as_of_recorder=lambda: None)


def execute(url: str, sql: str) -> None:
    """One statement, committed."""
    with psycopg.connect(url) as connection:
        connection.execute(sql)  # type: ignore[call-overload]


def read(path: Path) -> list[dict[str, str]]:
    """A report's file as an ordinary reader sees it."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


EVERY_KIND = (
    Item("0001234", 245_200),
    Item("1234567890123456789", 1, twice=True),
    Item("-5", 10, status="dead", cause="refused", reason="=cmd|'/C calc'!A0", code=400),
    Item("d", 20, status="dead", cause=UNKNOWN, reason='said "maybe", then\r\n-nothing;=1+1', code=None),
    Item("e", 30, status="retrying", reason="503", twice=True, code=503),
    Item("f", 40, status="cancelled"),
    Item("g", 50, status="pending", code=None),
    Item("h", 60, status="held", code=None),
    Item("y", 100, "JPY", "NA"),
    Item("b", 1_234, "BHD", "NA"),
)


def test_every_kind_of_item_is_summed_listed_and_in_balance(database_url: str, tmp_path: Path) -> None:
    """Disjoint categories by partner and currency with its decimals, a total for each currency, exit 1."""
    seed(database_url, EVERY_KIND)
    result = run(database_url, tmp_path)
    assert (result.verdict, result.exit_code, result.revision) == (Verdict.OPEN, 1, 1)
    assert result.directory == tmp_path / "2026-11-30" / "r1"
    rows = {(r["level"], r["partner"], r["currency"]): r for r in read(result.directory / "01_summary.csv")}
    assert list(rows) == [
        ("partner", "AB", "CZK"), ("partner", "NA", "BHD"), ("partner", "NA", "JPY"),
        ("total", "TOTAL", "BHD"), ("total", "TOTAL", "CZK"), ("total", "TOTAL", "JPY"),
    ]  # fmt: skip
    for row in (rows["partner", "AB", "CZK"], rows["total", "TOTAL", "CZK"]):
        kinds = (
            "batch",
            "delivered",
            "retrying",
            "dead",
            "unknown",
            "cancelled",
            "open",
            "possible_duplicates",
        )
        assert [(row[f"{kind}_count"], row[f"{kind}_amount"]) for kind in kinds] == [
            ("8", "2454.11"), ("2", "2452.01"), ("1", "0.30"), ("1", "0.10"), ("1", "0.20"), ("1", "0.40"),
            ("2", "1.10"), ("2", "0.31"),
        ]  # fmt: skip
    assert rows["partner", "NA", "JPY"]["delivered_amount"] == "100"
    assert rows["partner", "NA", "BHD"]["delivered_amount"] == "1.234"
    assert rows["partner", "NA", "BHD"]["dead_amount"] == "0.000"
    assert {row["in_balance"] for row in rows.values()} == {"yes"}


def test_every_item_is_in_the_items_file_in_its_own_order(database_url: str, tmp_path: Path) -> None:
    """Ids digit for digit, amounts exact, cells that begin like a formula harmless."""
    batch = seed(database_url, EVERY_KIND)
    items = read(run(database_url, tmp_path).directory / "04_items.csv.gz")
    assert [row["event_id"] for row in items] == [
        "0001234", "1234567890123456789", "'-5", "d", "e", "f", "g", "h", "y", "b",
    ]  # fmt: skip
    assert [row["amount"] for row in items][-3:] == ["0.60", "100", "1.234"]
    assert {row["partner"] for row in items} == {"AB", "NA"}
    assert {row["batch_id"] for row in items} == {str(batch)}
    assert items[2]["reason"] == "'=cmd|'/C calc'!A0"
    assert items[0] | {"created_at": "", "updated_at": "", "trace_id": ""} == {
        "category": "delivered", "possible_duplicate": "no", "partner": "AB", "amount": "2452.00",
        "currency": "CZK", "key": "payment-orders:0001234", "event_id": "0001234", "batch_id": str(batch),
        "row_number": "1", "attempts": "2", "last_status_code": "200", "cause": "", "reason": "",
        "created_at": "", "updated_at": "", "trace_id": "",
    }  # fmt: skip
    moment = datetime.fromisoformat(items[0]["created_at"])
    assert moment.tzinfo == UTC
    assert timedelta(minutes=94) < datetime.now(UTC) - moment < timedelta(minutes=100)


def test_exceptions_are_what_is_not_delivered_or_maybe_delivered_twice(
    database_url: str, tmp_path: Path
) -> None:
    """Each with category, reason, attempts, last status, amount and age; text of partners survives line ends."""
    seed(database_url, EVERY_KIND)
    rows = read(run(database_url, tmp_path).directory / "03_exceptions.csv")
    assert [(r["category"], r["event_id"], r["amount"], r["last_status_code"]) for r in rows] == [
        ("cancelled", "f", "0.40", "200"),
        ("dead", "'-5", "0.10", "400"),
        ("open", "g", "0.50", ""),
        ("open", "h", "0.60", ""),
        ("possible_duplicate", "1234567890123456789", "0.01", "200"),
        ("retrying", "e", "0.30", "503"),
        ("unknown", "d", "0.20", ""),
    ]
    assert [row["reason"] for row in rows] == [
        "no reason recorded",
        "'=cmd|'/C calc'!A0",
        "waiting to be sent",
        "held back",
        "an earlier send may have arrived",
        "503",
        "said \"maybe\", then\r\n'-nothing;'=1+1",
    ]
    assert {row["attempts"] for row in rows} == {"2"}
    assert {row["age_minutes"] for row in rows} == {"95"}


def test_the_files_are_rfc_4180_with_bom_and_named_in_the_manifest(database_url: str, tmp_path: Path) -> None:
    """Every record ends in CRLF; manifest.json has each file's size, rows and sha256, the moment and the totals."""
    seed(database_url, EVERY_KIND)
    before = datetime.now(UTC)
    result = run(database_url, tmp_path)
    manifest = json.loads((result.directory / "manifest.json").read_text(encoding="utf-8"))
    names = ["01_summary.csv", "02_batches.csv", "03_exceptions.csv", "04_items.csv.gz"]
    assert [file["name"] for file in manifest["files"]] == names
    assert sorted(entry.name for entry in result.directory.iterdir()) == [*names, "manifest.json"]
    for file in manifest["files"]:
        data = (result.directory / file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        text = gzip.decompress(data) if file["name"].endswith(".gz") else data
        assert text.startswith(b"\xef\xbb\xbf")
        assert text.endswith(b"\r\n")
        assert file["rows"] == len(read(result.directory / file["name"]))
    assert manifest["business_date"] == "2026-11-30"
    assert manifest["verdict"] == "open"
    assert before - timedelta(seconds=1) < datetime.fromisoformat(manifest["as_of"]) <= datetime.now(UTC)
    assert manifest["totals"][0]["delivered"] == {"count": 2, "amount": "2452.01"}


def test_a_day_that_came_to_its_end_is_closed(database_url: str, tmp_path: Path) -> None:
    """Delivered and dead: exit 0, no problems, the second file has manifest, loaded and final side by side."""
    seed(database_url, [Item("1", 245_200), Item("2", 100, status="dead", cause="refused", reason="400")])
    result = run(database_url, tmp_path)
    assert (result.verdict, result.exit_code, result.problems) == (Verdict.CLOSED, 0, ())
    (row,) = read(result.directory / "02_batches.csv")
    assert [row[f"{what}_count"] for what in ("expected", "already_known", "loaded", "final")] == [
        "2",
        "0",
        "2",
        "2",
    ]
    assert [row[f"{what}_amount"] for what in ("expected", "already_known", "loaded", "final")] == [
        "2453.00", "0.00", "2453.00", "2453.00",
    ]  # fmt: skip
    assert (row["job"], row["state"], row["in_balance"]) == ("payment-orders", "released", "yes")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE event SET amount_minor = amount_minor - 1 WHERE event_id = '1'",
        "UPDATE event SET event_id = '9' WHERE event_id = '1'",
        "UPDATE batch_total SET expected_minor = expected_minor + 1",
        "DELETE FROM delivery WHERE event = (SELECT min(id) FROM event)",
        "DELETE FROM event WHERE event_id = '1'",
        "UPDATE delivery SET partner = 'CD' WHERE event = (SELECT min(id) FROM event)",
        "INSERT INTO delivery (event, partner, updated_at) SELECT min(id), 'CD', now() FROM event",
        "UPDATE batch SET state = 'running'",
        "UPDATE batch SET state = 'failed'",
    ],
)
def test_whatever_does_not_add_up_is_found(database_url: str, tmp_path: Path, damage: str) -> None:
    """A cent, an id, a lost or doubled row, a wrong partner, an unfinished batch: exit 2, and files to look at."""
    seed(database_url, [Item("1", 245_200), Item("2", 100)])
    assert run(database_url, tmp_path).verdict is Verdict.CLOSED
    execute(database_url, damage)
    result = run(database_url, tmp_path)
    assert (result.verdict, result.exit_code) == (Verdict.OUT_OF_BALANCE, 2)
    assert result.problems
    assert result.directory.name == "r2"


def test_an_item_known_before_belongs_to_the_batch_that_loaded_it(database_url: str, tmp_path: Path) -> None:
    """The second batch held one row more than it loaded, counted as already known; no item is counted twice."""
    seed(database_url, [Item("1", 100)])
    second = seed(database_url, [Item("2", 200)], revision=2)
    execute(
        database_url,
        "UPDATE batch SET expected_count = 2, already_known = 1, ids_sha256 = 'both' WHERE revision = 2;"
        f"UPDATE batch_total SET expected_count = 2, expected_minor = 300, known_count = 1, known_minor = 100"
        f" WHERE batch_id = {second}",
    )
    result = run(database_url, tmp_path)
    assert (result.verdict, result.problems) == (Verdict.CLOSED, ())
    assert [row["batch_count"] for row in read(result.directory / "01_summary.csv")] == ["2", "2"]
    assert [row["already_known_amount"] for row in read(result.directory / "02_batches.csv")] == [
        "0.00",
        "1.00",
    ]


def test_a_day_without_a_batch_says_so(database_url: str, tmp_path: Path) -> None:
    """Exit 1 and empty tables, since nobody knows whether something was due."""
    result = run(database_url, tmp_path)
    assert (result.exit_code, result.problems) == (1, ("no batch for 2026-11-30",))
    assert read(result.directory / "04_items.csv.gz") == []


def test_items_without_amount_are_counted(database_url: str, tmp_path: Path) -> None:
    """A job without amounts has counts, an empty currency and empty amount cells."""
    seed(database_url, [Item("1", None, None), Item("2", None, None, status="pending")])
    result = run(database_url, tmp_path)
    assert result.verdict is Verdict.OPEN
    assert [row["delivered_count"] for row in read(result.directory / "01_summary.csv")] == ["1", "1"]
    assert [row["amount"] for row in read(result.directory / "04_items.csv.gz")] == ["", ""]


def test_sums_beyond_a_bigint_stay_exact(database_url: str, tmp_path: Path) -> None:
    """Three of the largest amounts that can be stored."""
    seed(database_url, [Item(str(n), 2**63 - 1, "JPY") for n in range(3)])
    result = run(database_url, tmp_path)
    assert read(result.directory / "01_summary.csv")[0]["delivered_amount"] == str(Decimal(3 * (2**63 - 1)))


def test_an_amount_that_cannot_be_written_publishes_nothing(database_url: str, tmp_path: Path) -> None:
    """A currency without decimals known to ISO 4217 is refused rather than guessed."""
    seed(database_url, [Item("1", 100, "ZZZ")])
    with pytest.raises(ReportMismatch, match="ZZZ"):
        run(database_url, tmp_path)
    assert list((tmp_path / "2026-11-30").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "written", "instead"),
    [
        ("01_summary.csv", b"2454.11", b"2454.12"),
        ("01_summary.csv", b",2452.01,", b",2452.00,"),
        ("02_batches.csv", b"2454.11,8,2454.11", b"2454.11,8,2454.10"),
        ("02_batches.csv", b'\r\n"1",', b'\r\n"2",'),
        ("03_exceptions.csv", b",0.30,", b",0.31,"),
        ("03_exceptions.csv", b'"dead"', b'"open"'),
        ("04_items.csv.gz", b",2452.00,", b",2452.01,"),
        ("04_items.csv.gz", b'"NA"', b'""'),
        ("04_items.csv.gz", b'"delivered","yes"', b'"delivered","no"'),
    ],
)
def test_a_file_that_differs_from_sql_is_not_published(
    database_url: str, tmp_path: Path, name: str, written: bytes, instead: bytes
) -> None:
    """One cent, one category, one name that a reader would lose: `ReportMismatch` names the file."""
    seed(database_url, EVERY_KIND)
    folder = run(database_url, tmp_path).directory
    with snapshot(database_url, name="test") as record:
        day = look(record, DAY)
    verify(folder, day)
    path = folder / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert written in data
    data = data.replace(written, instead)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    with pytest.raises(ReportMismatch, match=name):
        verify(folder, day)


def test_a_folder_that_cannot_be_written_is_told(database_url: str, tmp_path: Path) -> None:
    """A file stands where the folder should be: what to do is said, and it is not taken for open items (exit 1)."""
    (tmp_path / "reports").write_text("")
    with pytest.raises(
        ReportNotWritten, match=r"reports/2026-11-30 can't be written \(Not a directory\).*--out"
    ):
        run(database_url, tmp_path / "reports")
    with psycopg.connect(database_url) as record:
        assert record.execute("SELECT count(*) FROM report_run").fetchone() == (0,)


def test_each_run_has_its_own_revision_and_equal_days_equal_bytes(database_url: str, tmp_path: Path) -> None:
    """The second run leaves the first as it was; both are in `report_run`; the tables are the same bytes."""
    seed(database_url, [Item("1", 100), Item("2", 200, partner="-CD")])
    first = run(database_url, tmp_path).directory
    before = {file.name: file.read_bytes() for file in first.iterdir()}
    second = run(database_url, tmp_path).directory
    assert (first.name, second.name) == ("r1", "r2")
    assert {file.name: file.read_bytes() for file in first.iterdir()} == before
    for name in ("01_summary.csv", "02_batches.csv", "03_exceptions.csv", "04_items.csv.gz"):
        assert (second / name).read_bytes() == before[name]
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT revision, verdict, directory FROM report_run ORDER BY 1").fetchall()
    assert rows == [(1, "closed", str(first)), (2, "closed", str(second))]


def test_a_revision_is_not_given_again_in_another_folder(database_url: str, tmp_path: Path) -> None:
    """The numbers of a business date belong to the record, wherever the files go."""
    assert run(database_url, tmp_path / "a").revision == 1
    assert run(database_url, tmp_path / "b").revision == 2


def test_runs_at_the_same_time_publish_one_revision_each(database_url: str, tmp_path: Path) -> None:
    """Four at once: r1 to r4, each whole, nothing else in the folder."""
    seed(database_url, EVERY_KIND)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(database_url, tmp_path), range(4)))
    assert sorted(result.revision for result in results) == [1, 2, 3, 4]
    assert sorted(entry.name for entry in (tmp_path / "2026-11-30").iterdir()) == ["r1", "r2", "r3", "r4"]
    for result in results:
        assert len(list(result.directory.iterdir())) == 5
        assert json.loads((result.directory / "manifest.json").read_text())["revision"] == result.revision


def test_a_run_killed_before_the_rename_leaves_no_report(database_url: str, tmp_path: Path) -> None:
    """Neither a folder nor a row; the next run is r1 and sweeps up what the killed one left."""
    seed(database_url, EVERY_KIND)
    program = (
        "import sys, datetime, pathlib; from pipelines.reconcile import reconcile;"
        "reconcile(database_url=sys.argv[1], business_date=datetime.date(2026, 11, 30),"
        "out=pathlib.Path(sys.argv[2]), as_of_recorder=lambda: None)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program, database_url, str(tmp_path)],
        env={**os.environ, ENVIRONMENT_NAME: "reconcile-before-rename"},
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert [entry.name[:9] for entry in (tmp_path / "2026-11-30").iterdir()] == [".writing-"]
    assert run(database_url, tmp_path).revision == 1
    assert [entry.name for entry in (tmp_path / "2026-11-30").iterdir()] == ["r1"]


def test_the_recorder_is_waited_for_before_the_snapshot(database_url: str, tmp_path: Path) -> None:
    """What the recorder writes while we wait is in the report."""
    seed(database_url, [Item("1", 100, status="pending")])

    def record() -> None:
        execute(database_url, "UPDATE delivery SET status = 'succeeded'")

    result = reconcile(database_url=database_url, business_date=DAY, out=tmp_path, as_of_recorder=record)
    assert result.verdict is Verdict.CLOSED


def test_a_snapshot_sees_one_moment(database_url: str) -> None:
    """What is committed after its first statement is not in any later one, neither rows nor copies."""
    seed(database_url, [Item("1", 100, status="pending")])
    parameters = {"business_date": DAY, "unknown": UNKNOWN}
    with snapshot(database_url, name="test") as record:
        execute(database_url, "UPDATE delivery SET status = 'succeeded'; DELETE FROM batch_total")
        assert [row[3] for row in record.rows("reconcile/totals", parameters)] == ["open"]
        assert record.rows("reconcile/batches", parameters)[0][13] == "AB"


def test_a_snapshot_cannot_write(database_url: str) -> None:
    """The transaction is read only: a report never changes the record."""
    with (
        snapshot(database_url, name="test") as record,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        record.connection.execute("DELETE FROM batch_total")


def test_a_database_that_does_not_answer_is_a_store_unavailable(tmp_path: Path) -> None:
    """Nothing is published and nothing is left behind."""
    with pytest.raises(StoreUnavailable):
        run("postgresql://127.0.0.1:1/none", tmp_path)
    assert list((tmp_path / "2026-11-30").iterdir()) == []

"""A night's run: released whole or not at all, once, and every row that cannot be sent has a reason."""

from __future__ import annotations

import csv
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import psycopg
import pytest

from pipelines.batch import BatchState, plan
from pipelines.manifest import Line, Sum
from streams.errors import BatchRefused, ConfigurationError, StoreUnavailable
from tests.pipelines.accounting import DAY, TABLE, Accounting, now
from tests.servers import Servers, cloned_database

ROOT = Path(__file__).parents[2]
OTHER_DAY = date(2026, 3, 3)


@pytest.fixture
def accounting(test_servers: Servers, database_url: str) -> Iterator[Accounting]:
    """A source and a record in two databases."""
    with cloned_database(test_servers.database_url, "template0") as source:
        made = Accounting(source, database_url)
        made.change(TABLE)
        yield made


# -- what is loaded --------------------------------------------------------------------------------------


def test_a_night_is_released_whole(accounting: Accounting) -> None:
    """Events, deliveries in the query's order by bank, manifest and feeding marks come with the state."""
    accounting.order(3, "AB", "1.50")
    accounting.order(1, "AB", "0.50", note="žluťoučký \\ \t\n\"'")
    accounting.order(2, "CD", "7")
    result = accounting.run()
    assert (result.state, result.did_nothing, result.loaded_count) == (BatchState.RELEASED, False, 3)
    assert result.lines == (
        Line("AB", "CZK", expected=Sum(2, 200), already_known=Sum(), loaded=Sum(2, 200)),
        Line("CD", "CZK", expected=Sum(1, 700), already_known=Sum(), loaded=Sum(1, 700)),
    )
    assert accounting.rows(
        """SELECT e.event_id, d.partner, d.row_number, e.amount_minor, e.currency, e.order_key, d.status::text
           FROM event e JOIN delivery d ON d.event = e.id ORDER BY d.partner, d.row_number"""
    ) == [
        ("1:2026-03-02", "AB", 1, 50, "CZK", "000123", "pending"),
        ("3:2026-03-02", "AB", 2, 150, "CZK", "000123", "pending"),
        ("2:2026-03-02", "CD", 1, 700, "CZK", "000123", "pending"),
    ]
    assert accounting.rows("SELECT state::text, lease_owner, expected_count, loaded_count FROM batch") == [
        ("released", None, 3, 3)
    ]
    assert accounting.rows("SELECT partner, rows, fed_upto FROM batch_partner ORDER BY 1") == [
        ("AB", 2, 0),
        ("CD", 1, 0),
    ]


def test_the_body_is_the_row_byte_for_byte(accounting: Accounting) -> None:
    """Quotes, backslashes, line ends and letters beyond ASCII arrive as PostgreSQL's JSON has them."""
    accounting.order(1, amount="2452.00", note="\\x \\\\ \t\n\r\b\x7f \"' žluť 💶 %s %%")
    accounting.run()
    with psycopg.connect(accounting.source) as source:
        [(wanted,)] = source.execute(
            "SELECT row_to_json(payment_orders)::text FROM payment_orders"
        ).fetchall()
    [(body, digest, kind, trace)] = accounting.rows(
        "SELECT body, body_sha256, content_type, trace_id FROM event"
    )
    assert body == wanted.encode()
    assert b'"amount":2452.00' in wanted.encode()
    assert digest == hashlib.sha256(wanted.encode()).digest()
    assert kind == "application/json"
    assert isinstance(trace, str)
    assert len(bytes.fromhex(trace)) == 16


def test_both_ways_write_the_same(
    accounting: Accounting, test_servers: Servers, database_template: str
) -> None:
    """Rows behind a known one are loaded the careful way, and cannot be told from those loaded straight."""
    columns = "event_id, body, body_sha256, amount_minor, currency, order_key, business_date, created_at, event_type"
    compared = (
        f"SELECT {columns}, partner, row_number FROM event JOIN delivery ON event = id ORDER BY event_id"
    )
    accounting.order(1, note="seen before")
    accounting.run(event_id=("order_id",))
    for number in range(2, 6):
        accounting.order(number, "AB" if number % 2 else "CD", f"{number}.05", note=f"\\n{number}")
    careful = accounting.run(day=OTHER_DAY, event_id=("order_id",))
    assert (careful.already_known, careful.loaded_count) == (1, 4)
    accounting.change("DELETE FROM payment_orders WHERE order_id = 1")
    with cloned_database(test_servers.database_url, database_template) as record:
        straight = Accounting(accounting.source, record)
        straight.run(day=OTHER_DAY, event_id=("order_id",))
        assert straight.rows(compared) == [row for row in accounting.rows(compared) if row[0] != "1"]


def test_more_rows_than_one_copy_takes(accounting: Accounting) -> None:
    """Numbers go on over the borders of the chunks, without a gap, bank by bank."""
    accounting.change(
        "INSERT INTO payment_orders SELECT n, CASE WHEN n % 3 = 0 THEN 'CD' ELSE 'AB' END, 'a', 0.01 * n, 'CZK' "
        "FROM generate_series(1, 45000) n"
    )
    result = accounting.run()
    assert result.state is BatchState.RELEASED
    assert accounting.loaded() == 45_000
    assert accounting.rows(
        """SELECT partner, count(*), max(row_number), bool_and(ordered) FROM (
               SELECT partner, row_number,
                      row_number = row_number() OVER (PARTITION BY partner ORDER BY split_part(event_id, ':', 1)::int)
                          AS ordered
               FROM delivery JOIN event ON id = event) x
           GROUP BY 1 ORDER BY 1"""
    ) == [("AB", 30_000, 30_000, True), ("CD", 15_000, 15_000, True)]
    ids = "".join(f"{n}:2026-03-02\n" for n in range(1, 45_001))
    assert result.ids_sha256 == hashlib.sha256(ids.encode()).hexdigest()
    assert accounting.rows("SELECT count(DISTINCT trace_id) FROM event") == [(45_000,)]


def test_a_night_without_rows_is_recorded(accounting: Accounting) -> None:
    """Zero rows are a released batch of zero rows, and a second run has nothing to do."""
    result = accounting.run()
    assert (result.state, result.did_nothing, result.expected_count) == (BatchState.RELEASED, False, 0)
    assert accounting.rows("SELECT state::text, expected_count, loaded_count FROM batch") == [
        ("released", 0, 0)
    ]
    assert accounting.run().did_nothing


def test_currency_and_partner_may_be_columns_or_fixed(accounting: Accounting) -> None:
    """Each currency has its own decimals; a fixed partner takes every row."""
    accounting.order(1, None, "5", currency="JPY")
    accounting.order(2, None, "0.005", currency="BHD")
    accounting.order(3, None, "0.05", currency="CZK")
    result = accounting.run(
        currency="currency", currency_is_column=True, partner="CD", partner_is_column=False
    )
    assert {line.currency: line.loaded for line in result.lines} == {
        "BHD": Sum(1, 5),
        "CZK": Sum(1, 5),
        "JPY": Sum(1, 5),
    }
    assert {line.partner for line in result.lines} == {"CD"}


def test_a_job_may_have_no_amounts(accounting: Accounting) -> None:
    """Rows are then counted, and neither amount nor currency is stored."""
    accounting.order(1, amount=None)
    result = accounting.run(amount=None, currency=None)
    assert result.lines == (Line("AB", "", expected=Sum(1), already_known=Sum(), loaded=Sum(1)),)
    assert accounting.rows("SELECT amount_minor, currency FROM event") == [(None, None)]


def test_the_real_orders_agree_with_what_their_origin_states(accounting: Accounting) -> None:
    """6,471 payment orders, 21,228,993.60 CZK, and the count of each of 13 banks."""
    accounting.change("DROP TABLE payment_orders")
    accounting.change(
        "CREATE TABLE payment_orders (order_id int, account_id int, bank_to text, account_to text, "
        "amount numeric, k_symbol text)"
    )
    with (
        psycopg.connect(accounting.source) as source,
        source.cursor().copy("COPY payment_orders FROM STDIN (FORMAT csv, DELIMITER ';', HEADER)") as copy,
    ):
        copy.write((ROOT / "data" / "payment_orders.csv").read_bytes())
    banks = {
        "QR": 531, "YZ": 521, "AB": 519, "WX": 515, "ST": 511, "KL": 500, "UV": 499,
        "IJ": 496, "GH": 487, "OP": 485, "EF": 483, "MN": 466, "CD": 458,
    }  # fmt: skip
    job = replace(
        accounting.job,
        query="SELECT * FROM payment_orders ORDER BY order_id",
        partners=frozenset(banks),
    )
    result = accounting.run(job=job)
    assert {line.partner: line.loaded.count for line in result.lines} == banks
    assert (result.loaded_count, result.manifest.amounts()) == (6471, {"CZK": 2_122_899_360})
    with (ROOT / "data" / "payment_orders.csv").open(encoding="utf-8", newline="") as file:
        assert accounting.loaded() == sum(1 for _ in csv.DictReader(file, delimiter=";"))


# -- once --------------------------------------------------------------------------------------------------


def test_a_second_run_does_nothing_and_says_what_there_is(accounting: Accounting) -> None:
    """Even when the source has changed meanwhile."""
    accounting.order(1)
    first = accounting.run()
    accounting.order(2)
    second = accounting.run()
    assert second.did_nothing
    assert (second.state, second.lines, second.batch_id) == (BatchState.RELEASED, first.lines, first.batch_id)
    assert second.ids_sha256 == first.ids_sha256
    assert accounting.loaded() == 1


def test_a_known_id_is_counted_and_not_loaded_again(accounting: Accounting) -> None:
    """Its amount stands in the manifest beside what is new; only new rows are numbered."""
    accounting.order(1, amount="1.00")
    accounting.order(2, amount="2.00")
    accounting.run(event_id=("order_id",))
    accounting.order(3, amount="4.00")
    result = accounting.run(day=OTHER_DAY, event_id=("order_id",))
    assert result.lines == (
        Line("AB", "CZK", expected=Sum(3, 700), already_known=Sum(2, 300), loaded=Sum(1, 400)),
    )
    assert accounting.rows(
        "SELECT row_number FROM delivery WHERE batch_id = (SELECT max(id) FROM batch)"
    ) == [(1,)]
    assert accounting.rows(
        "SELECT known_count, known_minor FROM batch_total ORDER BY batch_id DESC LIMIT 1"
    ) == [(2, 300)]
    again = accounting.run(day=OTHER_DAY, event_id=("order_id",))
    assert again.did_nothing
    assert again.already_known == 2


def test_the_same_order_on_another_date_is_another_payment(accounting: Accounting) -> None:
    """A standing order is paid on every run because the business date is part of its id."""
    accounting.order(1)
    accounting.run()
    assert accounting.run(day=OTHER_DAY).loaded_count == 1
    assert accounting.loaded() == 2


@pytest.mark.parametrize(
    "step", ["load-after-claim", "load-after-stage", "load-before-commit", "load-after-commit"]
)
def test_killed_anywhere_the_next_run_completes(accounting: Accounting, step: str) -> None:
    """No row is lost and none is there twice; the dead owner's lease is not waited for."""
    accounting.order(1)
    accounting.order(2, "CD")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, accounting.source, accounting.record],
        env=os.environ | {"MADEIRA_FAILPOINT": step, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    wait_for_end_of_sessions(accounting.record)
    result = accounting.run()
    assert result.state is BatchState.RELEASED
    assert result.did_nothing is (step == "load-after-commit")
    assert accounting.loaded() == 2
    assert accounting.rows("SELECT row_number FROM delivery ORDER BY partner") == [(1,), (1,)]


KILLED = """
import sys
from pipelines.batch import run_batch
from tests.pipelines.accounting import DAY, job, now
run_batch(job=job(sys.argv[1]), business_date=DAY, record=sys.argv[2], owner="killed", now=now)
"""


def wait_for_end_of_sessions(url: str) -> None:
    """The server notices a killed client's closed socket by itself; ask it until it has."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1000):
            found = connection.execute(
                """SELECT count(*), pg_sleep(CASE WHEN count(*) > 0 THEN 0.01 ELSE 0 END) FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = 'madeira-batch'"""
            ).fetchone()
            if found and found[0] == 0:
                return
    raise AssertionError("a killed client's session is still there")


def test_who_runs_it_now_is_left_alone(accounting: Accounting) -> None:
    """A second run in the middle of the first names the owner and does nothing."""
    accounting.order(1)
    seen = []

    def meanwhile(step: str) -> None:
        if step == "load-after-stage":
            seen.append(accounting.run(owner="host/2"))

    first = accounting.run(owner="host/1", checkpoint=meanwhile)
    assert [(one.did_nothing, one.state, one.running_by) for one in seen] == [
        (True, BatchState.RUNNING, "host/1")
    ]
    assert first.state is BatchState.RELEASED


def test_an_expired_lease_is_taken_over_and_the_first_owner_commits_nothing(accounting: Accounting) -> None:
    """Who was frozen past its lease finds the batch released by another and rolls back."""
    accounting.order(1)
    seen = []

    def frozen(step: str) -> None:
        if step == "load-after-claim":
            accounting.act("UPDATE batch SET lease_until = now() - interval '1 second'")
            seen.append(accounting.run(owner="host/2"))

    with pytest.raises(BatchRefused, match="took this batch over"):
        accounting.run(owner="host/1", checkpoint=frozen)
    assert [(one.state, one.did_nothing) for one in seen] == [(BatchState.RELEASED, False)]
    assert accounting.loaded() == 1
    assert accounting.rows("SELECT state::text, failure FROM batch") == [("released", None)]


# -- what cannot be sent -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"bank": None}, "partner is null"),
        ({"bank": "XY"}, "partner XY is not configured"),
        ({"amount": None}, "amount is null"),
        ({"amount": "NaN"}, "amount is NaN"),
        ({"amount": "Infinity"}, "amount is Infinity"),
        ({"amount": "0.001"}, "amount 0.001 has more than the 2 decimals of CZK"),
        ({"amount": "0.00"}, "amount 0.00 is not above zero"),
        ({"amount": "-5"}, "amount -5 is not above zero"),
        ({"amount": "92233720368547758.08"}, "amount 92233720368547758.08 is beyond what can be stored"),
        ({"currency": None}, "currency is null"),
        ({"currency": "XAU"}, "currency XAU is not an ISO 4217 code with a minor unit"),
        ({"currency": "czk"}, "currency czk is not an ISO 4217 code with a minor unit"),
    ],
)
def test_a_row_that_cannot_be_sent_fails_the_run(
    accounting: Accounting, order: dict[str, str | None], reason: str
) -> None:
    """Nothing of the batch is loaded; the row's place, id and reason are kept; mended, it can run again."""
    accounting.order(1)
    accounting.order(2, **order)  # type: ignore[arg-type]
    accounting.order(3)
    changes = {"currency": "currency", "currency_is_column": True}
    result = accounting.run(**changes)
    assert result.state is BatchState.FAILED
    assert result.offender_count == 1
    assert [(one.row, one.event_id, one.reason) for one in result.offenders] == [(2, "2:2026-03-02", reason)]
    assert accounting.loaded() == 0
    assert accounting.rows("SELECT count(*) FROM batch_partner") == [(0,)]
    [(state, failure, lease)] = accounting.rows("SELECT state::text, failure, lease_owner FROM batch")
    assert (state, lease) == ("failed", None)
    assert failure == {
        "count": 1,
        "offenders": [{"row": 2, "event_id": "2:2026-03-02", "reason": reason}],
        "reasons": [],
    }
    accounting.change("DELETE FROM payment_orders WHERE order_id = 2")
    mended = accounting.run(**changes)
    assert (mended.state, mended.loaded_count, mended.batch_id) == (BatchState.RELEASED, 2, result.batch_id)
    assert accounting.rows("SELECT failure FROM batch") == [(None,)]


def test_ids_must_be_there_once_and_well_formed(accounting: Accounting) -> None:
    """Null, twice, too long, with a blank or with a colon in one of several columns."""
    accounting.order(None, account="a")
    accounting.order(1, account="b")
    accounting.order(1, account="b")
    accounting.order(2, account="with blank")
    accounting.order(3, account="with:colon")
    accounting.order(4, account="x" * 130)
    accounting.order(5, account="")
    result = accounting.run(event_id=("order_id", "account_to"))
    malformed = "id must be 1 to 128 of A-Z a-z 0-9 . _ - in each column"
    assert [(one.row, one.reason) for one in result.offenders] == [
        (1, "a column of its id is null"),
        (2, "2 rows have this id"),
        (3, "2 rows have this id"),
        (4, malformed),
        (5, malformed),
        (6, malformed),
        (7, malformed),
    ]
    assert result.offender_count == 7
    assert accounting.loaded() == 0


def test_an_id_of_one_column_may_hold_colons(accounting: Accounting) -> None:
    """There is nothing that it could be confused with."""
    accounting.order(1, account="inv:2026:1")
    assert accounting.run(event_id=("account_to",)).state is BatchState.RELEASED
    assert accounting.rows("SELECT event_id FROM event") == [("inv:2026:1",)]


def test_an_id_known_with_another_body_is_a_conflict(accounting: Accounting) -> None:
    """Somebody must look at it: nothing of the batch is sent, the first event stays as it was."""
    accounting.order(1, amount="1.00")
    first = accounting.run(event_id=("order_id",))
    accounting.change("UPDATE payment_orders SET amount = 2.00")
    accounting.order(2)
    result = accounting.run(day=OTHER_DAY, event_id=("order_id",))
    assert [(one.row, one.reason) for one in result.offenders] == [
        (1, f"id is already known with another body, from batch {first.batch_id}")
    ]
    assert accounting.rows("SELECT amount_minor FROM event") == [(100,)]


def test_the_first_twenty_of_many_and_their_number(accounting: Accounting) -> None:
    """A broken export does not fill the screen."""
    accounting.change(
        "INSERT INTO payment_orders SELECT n, 'XY', 'a', 1, 'CZK', NULL FROM generate_series(1, 2500) n"
    )
    result = accounting.run()
    assert result.offender_count == 2500
    assert [one.row for one in result.offenders] == list(range(1, 21))


def test_text_that_is_not_utf8_is_an_offender(accounting: Accounting, test_servers: Servers) -> None:
    """A SQL_ASCII source can hold any bytes; each such row is found and shown as far as it can be read."""
    with psycopg.connect(test_servers.database_url, autocommit=True) as admin:
        name = "ascii_" + os.urandom(6).hex()
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0".encode()
        )
        try:
            source = test_servers.database_url.rsplit("/", 1)[0] + f"/{name}"
            odd = Accounting(source, accounting.record)
            odd.change(TABLE)
            odd.order(1)
            odd.order(2)
            odd.order(3)
            odd.change(r"UPDATE payment_orders SET note = E'caf\xe9' WHERE order_id = 2")
            odd.change(r"UPDATE payment_orders SET account_to = E'\xff' WHERE order_id = 3")
            result = odd.run()
            assert [(one.row, one.event_id, one.reason) for one in result.offenders] == [
                (2, "2:2026-03-02", "holds text that is not UTF-8"),
                (3, "3:2026-03-02", "holds text that is not UTF-8"),
            ]
            odd.change("UPDATE payment_orders SET note = 'café', account_to = 'ř'")
            assert odd.run().state is BatchState.RELEASED
            assert b"caf\xc3\xa9" in odd.rows("SELECT body FROM event LIMIT 1")[0][0]  # type: ignore[operator]
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_character_that_utf8_lacks_ends_the_copy_there(
    accounting: Accounting, test_servers: Servers
) -> None:
    """A source in another encoding stops at such a row: its place and the source's words are the offender."""
    with psycopg.connect(test_servers.database_url, autocommit=True) as admin:
        name = "win_" + os.urandom(6).hex()
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'WIN1252' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0".encode()
        )
        try:
            source = test_servers.database_url.rsplit("/", 1)[0] + f"/{name}"
            odd = Accounting(source, accounting.record)
            odd.change(TABLE)
            for number in range(1, 5):
                odd.order(number, note="é€")
            odd.change(r"UPDATE payment_orders SET note = convert_from('\x81', 'WIN1252') WHERE order_id = 3")
            result = odd.run()
            assert (result.state, result.offender_count) == (BatchState.FAILED, 1)
            assert result.offenders[0].row == 3
            assert "has no equivalent in encoding" in result.offenders[0].reason
            odd.change("DELETE FROM payment_orders WHERE order_id = 3")
            assert odd.run().loaded_count == 3
            assert "é€".encode() in odd.rows("SELECT body FROM event LIMIT 1")[0][0]  # type: ignore[operator]
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


# -- what goes wrong around it -------------------------------------------------------------------------------


def test_a_source_that_answers_differently_is_not_released(accounting: Accounting) -> None:
    """The gate compares with the source's own count of the same snapshot: a query of chance does not pass."""
    accounting.order(1)
    accounting.order(2)
    query = (
        "SELECT order_id, bank_to, account_to, amount + (random() * 1e6)::int AS amount FROM payment_orders"
    )
    result = accounting.run(query=query)
    assert result.state is BatchState.FAILED
    assert len(result.reasons) == 1
    assert result.reasons[0].startswith("AB: the source counts 2 rows with ")
    assert accounting.loaded() == 0


def test_a_query_that_fails_while_it_runs(accounting: Accounting) -> None:
    """The reason is in the error and in the batch, nothing is loaded, and the next run may begin."""
    accounting.order(1)
    accounting.order(2)
    with pytest.raises(BatchRefused, match="division by zero"):
        accounting.run(query="SELECT *, 1 / (2 - order_id) AS x FROM payment_orders ORDER BY order_id")
    [(state, failure)] = accounting.rows("SELECT state::text, failure FROM batch")
    assert state == "failed"
    assert "division by zero" in str(failure)
    assert accounting.loaded() == 0
    assert accounting.run().loaded_count == 2


def test_a_source_that_is_away(accounting: Accounting) -> None:
    """The batch is failed and can be run again."""
    with pytest.raises(StoreUnavailable, match="source of job payment-orders"):
        accounting.run(dsn="postgresql://nobody@127.0.0.1:1/none")
    assert accounting.run().state is BatchState.RELEASED


def test_a_record_that_is_away(accounting: Accounting) -> None:
    """Says so; nothing can be written about it."""
    with pytest.raises(StoreUnavailable, match="the record"):
        Accounting(accounting.source, "postgresql://nobody@127.0.0.1:1/none").run()


def test_a_record_of_another_encoding_is_refused(accounting: Accounting) -> None:
    """Bodies are kept as UTF-8 bytes, so the database must speak it."""
    accounting.change("SELECT 1")
    with psycopg.connect(accounting.record, autocommit=True) as admin:
        name = "latin_" + os.urandom(6).hex()
        admin.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0".encode()
        )
        try:
            with pytest.raises(ConfigurationError, match="UTF8"):
                Accounting(accounting.source, accounting.record.rsplit("/", 1)[0] + f"/{name}").run()
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_plan_writes_nothing(accounting: Accounting) -> None:
    """It shows the manifest that a run would have, with what is known, and the offenders."""
    accounting.order(1, amount="1.00")
    accounting.run(event_id=("order_id",))
    accounting.order(2, amount="2.00")
    job = replace(accounting.job, event_id=("order_id",))
    planned = plan(job=job, business_date=OTHER_DAY, record=accounting.record, now=now)
    assert planned.lines == (
        Line("AB", "CZK", expected=Sum(2, 300), already_known=Sum(1, 100), loaded=Sum(1, 200)),
    )
    accounting.order(3, "XY")
    refused = plan(job=job, business_date=OTHER_DAY, record=accounting.record, now=now)
    assert [one.reason for one in refused.offenders.first] == ["partner XY is not configured"]
    assert accounting.rows("SELECT business_date FROM batch") == [(DAY,)]
    assert accounting.loaded() == 1

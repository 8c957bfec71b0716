"""The source: the date is bound where it is meant, the snapshot stands still, errors name the place and no secret."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import psycopg
import pytest

from pipelines.job import Job
from pipelines.manifest import Group, Sum
from pipelines.source import bind_date, snapshot
from streams.errors import BatchRefused, ConfigurationError, StoreUnavailable
from tests.pipelines.accounting import DAY, TABLE, job


@pytest.fixture
def source(database_url: str) -> Job:
    """A job whose source has two orders."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("INSERT INTO payment_orders VALUES (1, 'AB', '007', 2452.00, 'CZK', 'a\\b')")
        connection.execute("INSERT INTO payment_orders VALUES (2, 'CD', '008', 0.10, 'CZK', NULL)")
    return job(database_url)


@pytest.mark.parametrize(
    ("query", "bound"),
    [
        ("SELECT :business_date", "SELECT DATE '2026-03-02'"),
        ("SELECT ':business_date'", "SELECT ':business_date'"),
        ("SELECT 'it''s :business_date', :business_date", "SELECT 'it''s :business_date', DATE '2026-03-02'"),
        (r"SELECT E'\' :business_date', :business_date", r"SELECT E'\' :business_date', DATE '2026-03-02'"),
        ('SELECT ":business_date"', 'SELECT ":business_date"'),
        ("SELECT $x$ :business_date $x$, :business_date", "SELECT $x$ :business_date $x$, DATE '2026-03-02'"),
        ("SELECT 1 -- :business_date\n, :business_date", "SELECT 1 -- :business_date\n, DATE '2026-03-02'"),
        (
            "SELECT 1 /* :business_date /* */ :business_date */",
            "SELECT 1 /* :business_date /* */ :business_date */",
        ),
        ("SELECT '1'::business_date", "SELECT '1'::business_date"),
        ("SELECT d::date, :business_date::text", "SELECT d::date, DATE '2026-03-02'::text"),
        ("SELECT :business_dates", "SELECT :business_dates"),
        ("SELECT 1;", "SELECT 1"),
        ("SELECT 1 ; \n", "SELECT 1  \n"),
        ("SELECT 1; -- the end", "SELECT 1 -- the end"),
        ("SELECT ';'", "SELECT ';'"),
    ],
)
def test_the_date_is_bound_where_it_is_meant(query: str, bound: str) -> None:
    """Quoted text, comments and casts are left alone; a last semicolon goes."""
    assert bind_date(query, date(2026, 3, 2)) == bound


def test_rows_keep_their_decimals_and_order(source: Job) -> None:
    """The body is the row as PostgreSQL writes it: 2452.00 stays 2452.00, columns stay in order."""
    with snapshot(source, DAY) as opened:
        rows = [row.split(b"\t") for row in opened.rows()]
    assert rows[0][:5] == [b"1:2026-03-02", b"AB", b"2452.00", b"CZK", b"007"]
    expected = (
        rb'{"order_id":1,"bank_to":"AB","account_to":"007","amount":2452.00,"currency":"CZK","note":"a\\\\b"}'
    )
    assert rows[0][5] == expected + b"\n"
    assert [row[0] for row in rows] == [b"1:2026-03-02", b"2:2026-03-02"]


def test_one_snapshot_for_rows_and_totals(source: Job) -> None:
    """What is committed between reading rows and counting is in neither."""
    with snapshot(source, DAY) as opened:
        before = list(opened.rows())
        with psycopg.connect(source.dsn, autocommit=True) as other:
            other.execute("INSERT INTO payment_orders VALUES (3, 'AB', '009', 5, 'CZK', NULL)")
        assert list(opened.rows()) == before
        assert opened.totals() == {Group("AB", "CZK"): Sum(1, 245200), Group("CD", "CZK"): Sum(1, 10)}


def test_the_source_is_read_only(source: Job) -> None:
    """A query that would change the accounting is refused by its server."""
    with psycopg.connect(source.dsn, autocommit=True) as other:
        other.execute("CREATE SEQUENCE s")
    writing = replace(source, query="SELECT *, setval('s', 9) FROM payment_orders")
    with snapshot(writing, DAY) as opened, pytest.raises(BatchRefused, match="read-only"):
        list(opened.rows())


def test_a_business_date_that_is_selected_is_taken_from_the_row(source: Job) -> None:
    """The query's own column wins over the run's date."""
    own = replace(
        source, query="SELECT *, DATE '2020-01-31' AS business_date FROM payment_orders ORDER BY order_id"
    )
    with snapshot(own, DAY) as opened:
        assert next(iter(list(opened.rows()))).startswith(b"1:2020-01-31\t")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"event_id": ("no_id",)}, "event_id names the column no_id"),
        ({"partner": "bank"}, "partner names the column bank"),
        ({"amount": "sum"}, "amount names the column sum"),
        ({"currency": "cur", "currency_is_column": True}, "currency names the column cur"),
        ({"order_key": "key"}, "order_key names the column key"),
    ],
)
def test_a_missing_column_is_named_with_those_there_are(
    source: Job, change: dict[str, object], words: str
) -> None:
    """The message has the key, the column and what the query has instead."""
    with (
        pytest.raises(BatchRefused, match=f"{words}.*order_id, bank_to, account_to, amount, currency, note"),
        snapshot(replace(source, **change), DAY),  # type: ignore[arg-type]
    ):
        pass


def test_a_float_is_no_amount(source: Job) -> None:
    """A double precision column is refused before a row is read, with the cast that mends it."""
    floating = replace(
        source, query="SELECT order_id, bank_to, account_to, amount::float8 AS amount FROM payment_orders"
    )
    with pytest.raises(BatchRefused, match="amount::numeric"), snapshot(floating, DAY):
        pass


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; DELETE FROM payment_orders",
        "SELECT * FROM payment_orders) AS q; DELETE FROM payment_orders; SELECT (1",
        "DELETE FROM payment_orders RETURNING *",
        "SELEC 1",
        "",
    ],
)
def test_only_one_query_is_read(source: Job, query: str) -> None:
    """A second statement, one that writes, or nonsense is refused and names the file."""
    with (
        pytest.raises(BatchRefused, match=r"queries/payment_orders\.sql"),
        snapshot(replace(source, query=query), DAY),
    ):
        pass
    with psycopg.connect(source.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM payment_orders").fetchone() == (2,)


def test_errors_never_hold_the_dsn(source: Job) -> None:
    """Neither a server that is away nor a DSN that cannot be read shows the password."""
    with (
        pytest.raises(StoreUnavailable) as away,
        snapshot(replace(source, dsn="postgresql://me:hush@127.0.0.1:1/x"), DAY),
    ):
        pass
    with pytest.raises(ConfigurationError) as unreadable, snapshot(replace(source, dsn="hush hush"), DAY):
        pass
    with pytest.raises(ConfigurationError, match="ACCOUNTING_DSN"), snapshot(replace(source, dsn=""), DAY):
        pass
    for error in (away.value, unreadable.value):
        assert "hush" not in str(error)
        assert error.__cause__ is None

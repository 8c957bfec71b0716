"""An accounting database of the test's own, and jobs that read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

import psycopg

from pipelines.batch import BatchResult, run_batch
from pipelines.job import Job

DAY = date(2026, 3, 2)
NOW = datetime(2026, 3, 2, 1, 15, tzinfo=UTC)

TABLE = """
CREATE TABLE payment_orders (
    order_id bigint, bank_to text, account_to text, amount numeric, currency text, note text
)
"""

QUERY = "SELECT * FROM payment_orders ORDER BY order_id NULLS FIRST, account_to"


def now() -> datetime:
    """A clock that stands."""
    return NOW


def job(dsn: str) -> Job:
    """Payment orders in CZK for two banks."""
    return Job(
        id="payment-orders",
        dsn=dsn,
        query=QUERY,
        query_file="queries/payment_orders.sql",
        event_id=("order_id", "business_date"),
        partner="bank_to",
        partner_is_column=True,
        amount="amount",
        currency="CZK",
        currency_is_column=False,
        event_type="payment",
        order_key="account_to",
        partners=frozenset({"AB", "CD"}),
        dsn_env="ACCOUNTING_DSN",
    )


@dataclass(frozen=True, slots=True)
class Accounting:
    """The source and the record, and a night between them."""

    source: str
    record: str

    @property
    def job(self) -> Job:
        """The usual job."""
        return job(self.source)

    def order(
        self,
        order_id: int | None,
        bank: str | None = "AB",
        amount: str | None = "10.00",
        *,
        account: str = "000123",
        currency: str | None = "CZK",
        note: str | None = None,
    ) -> None:
        """One more order."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO payment_orders VALUES (%s, %s, %s, %s::numeric, %s, %s)",
                (order_id, bank, account, amount, currency, note),
            )

    def change(self, statement: str) -> None:
        """Anything else that happens to the source."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            connection.execute(statement.encode())

    def run(
        self,
        *,
        day: date = DAY,
        job: Job | None = None,
        owner: str = "host/1",
        checkpoint: Callable[[str], None] = lambda _: None,
        **changes: object,
    ) -> BatchResult:
        """One run; `changes` are fields of the usual job."""
        base = job or self.job
        return run_batch(
            job=replace(base, **changes),  # type: ignore[arg-type]  # a field's name and value, by the caller's word
            business_date=day,
            record=self.record,
            owner=owner,
            now=now,
            checkpoint=checkpoint,
        )

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What the record says."""
        with psycopg.connect(self.record, autocommit=True) as connection:
            return list(connection.execute(query.encode()).fetchall())

    def act(self, statement: str) -> None:
        """Change the record."""
        with psycopg.connect(self.record, autocommit=True) as connection:
            connection.execute(statement.encode())

    def loaded(self) -> int:
        """Events and deliveries, which are always as many."""
        [(events, deliveries)] = self.rows(
            "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM delivery)"
        )
        assert isinstance(events, int)
        assert events == deliveries
        return events

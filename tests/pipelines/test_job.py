"""What a job shows of itself."""

from __future__ import annotations

from pipelines.job import Job


def test_a_job_never_shows_its_dsn() -> None:
    """It may be logged as it is."""
    job = Job(
        id="payment-orders", dsn="postgresql://u:hunter2@h/d", query="SELECT 1 AS id", query_file="q.sql",
        event_id=("id",), partner="AB", partner_is_column=False, amount=None, currency=None,
        currency_is_column=False, event_type="payment", order_key=None, partners=frozenset({"AB"}),
        dsn_env="ACCOUNTING_DSN",
    )  # fmt: skip
    assert "hunter2" not in repr(job)
    assert "ACCOUNTING_DSN" in repr(job)

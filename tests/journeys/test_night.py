"""A whole night in one process: source, Madeira and the banks end up with the same books."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
from decimal import Decimal
from pathlib import Path

import pytest

from madeira.bank_ledger import Bank
from madeira.morning import recorder_passed
from madeira.wiring import Servers
from pipelines.balance import Category, Verdict
from pipelines.reconcile import ReconcileResult, reconcile
from tests.journeys.house import DAY, JOB, House, house


async def _reported(night: House, out: Path) -> ReconcileResult:
    """The morning's report, once everything that Redis holds is recorded."""
    where = Servers(night.record_url, night.settings.redis_url or "", None)
    await recorder_passed(night.settings, where)
    return await asyncio.to_thread(
        reconcile, database_url=night.record_url, business_date=DAY, out=out, as_of_recorder=lambda: None
    )


@pytest.mark.slow
async def test_three_ledgers_agree_to_the_cent(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Loaded, fed, sent, settled, recorded and reconciled: each order once at its bank, with its own bytes."""
    async with house(database_url, redis_url, key_prefix, tmp_path, A=Bank(), B=Bank()) as night:
        amount = night.order(100)
        await night.hire()
        await night.hire()
        assert (await night.load()).loaded_count == 100
        await night.drained()

        result = await _reported(night, tmp_path / "reports")
        accepted = night.accepted()
        assert {entry.id for entry in accepted} == night.ids
        assert len(accepted) == 100
        assert sum(entry.amount_minor or 0 for entry in accepted) == int(amount * 100)
        (total,) = (line for line in result.totals if line.partner is None)
        assert (result.verdict, result.exit_code) == (Verdict.CLOSED, 0)
        assert total.categories[Category.DELIVERED] == total.batch
        assert total.batch.minor == int(amount * 100)
        assert total.possible_duplicates.count == 0
        bodies = dict(night.record(f"SELECT '{JOB}:' || event_id, encode(body_sha256, 'hex') FROM event"))
        assert {entry.id: entry.sha256 for entry in accepted} == bodies
        text = gzip.decompress((result.directory / "04_items.csv.gz").read_bytes()).decode("utf-8-sig")
        items = list(csv.DictReader(io.StringIO(text)))
        assert sum(Decimal(item["amount"]) for item in items) == amount


@pytest.mark.slow
async def test_difficult_banks(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    """503 and a soft failure come again after their delay, a refusal is dead with its reason, and what was booked
    before a reset is sent again with the flag."""
    behaviours = {
        "A": Bank(unavailable_requests=5),
        "B": Bank(soft_fail_every=3),
        "C": Bank(refuse_accounts=("7",)),
        "D": Bank(reset_once=True),
    }
    async with house(database_url, redis_url, key_prefix, tmp_path, **behaviours) as night:
        night.order(80)
        await night.hire()
        await night.load()
        await night.drained()

        closed = {f"{JOB}:{n}:{DAY}" for n in range(1, 81) if n % 4 == 2 and str(n).endswith("7")}
        closed |= {entry.id for entry in night.banks.entries() if entry.status == 400}
        statuses = night.statuses()
        assert {key for key, (status, _) in statuses.items() if status == "dead"} == closed
        assert {entry.id for entry in night.accepted()} == night.ids - closed
        reasons = night.record("SELECT DISTINCT cause, last_error FROM delivery WHERE status = 'dead'")
        assert reasons == ([("refused", "400: ACCOUNT_CLOSED")] if closed else [])
        waited = night.record("SELECT count(*) FROM delivery_log WHERE outcome = 'retry' AND partner = 'A'")
        assert waited == [(5,)]
        (twice,) = (key for key, (_, flagged) in statuses.items() if flagged)
        assert sum(entry.id == twice for entry in night.accepted()) == 2
        assert {entry.bank for entry in night.accepted() if entry.id == twice} == {"D"}


@pytest.mark.slow
async def test_an_answer_that_nobody_can_read(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """A 200 that is no JSON is Unknown: sent again up to its bound, with the flag, then dead to be asked."""
    async with house(database_url, redis_url, key_prefix, tmp_path, A=Bank(hostile="html")) as night:
        night.order(3)
        await night.hire()
        await night.load()
        await night.drained()
        assert set(night.statuses().values()) == {("dead", True)}
        assert night.record("SELECT DISTINCT cause, attempts::int, unknowns::int FROM delivery") == [
            ("unknown_confirm_first", 4, 4)
        ]
        flags = night.record(
            "SELECT number::int, bool_and(possible_duplicate) FROM delivery_log GROUP BY 1 ORDER BY 1"
        )
        assert flags == [(1, False), (2, True), (3, True), (4, True)]

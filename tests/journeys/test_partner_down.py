"""A bank that is away while two workers send to it: probes, no dead letters, and all of it delivered afterwards."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from madeira.bank_ledger import Bank
from tests.journeys.house import house


@pytest.mark.slow
async def test_two_workers_and_one_breaker(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the bank answers 503 little more is sent than opens the breaker; then each payment is booked once."""
    caplog.set_level(logging.INFO)
    async with house(
        database_url, redis_url, key_prefix, tmp_path, A=Bank(unavailable_s=4), B=Bank()
    ) as night:
        night.order(400)
        await night.hire()
        await night.hire()
        await night.load()
        await night.drained()

        accepted = night.accepted()
        assert {entry.id for entry in accepted} == night.ids
        assert len(accepted) == 400
        assert set(night.statuses().values()) == {("succeeded", False)}
        refused = [entry for entry in night.banks.entries() if entry.status == 503]
        assert 20 <= len(refused) <= 100, "what was in flight when it opened goes out, and nothing after it"
        said = [record.message for record in caplog.records if record.message.startswith("breaker_")]
        assert said == ["breaker_opened", "breaker_closed"]
        counted = night.record("SELECT sum(attempts)::int FROM delivery")[0][0]
        logged = night.record("SELECT count(*)::int FROM delivery_log")[0][0]
        assert logged == 400 + len(refused)
        assert 400 + 20 <= counted <= logged

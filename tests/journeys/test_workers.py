"""Workers leave, die and lose their lease; loaders and schedulers die and are followed by others."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis as redis_sync

from madeira.bank_ledger import Bank
from madeira.commands import scheduler_for
from pipelines.batch import BatchState
from scheduler.fire import End
from tests.journeys.house import DAY, JOB, House, ended_by_itself, house


def _leases(night: House) -> list[bytes]:
    assert night.settings.redis_url is not None
    with redis_sync.Redis.from_url(night.settings.redis_url) as client:
        found: list[bytes] = list(client.scan_iter(match=f"{night.settings.key_prefix}:worker:*"))
    return found


def _end_leases(night: House) -> int:
    """What fifteen seconds without a heartbeat do."""
    assert night.settings.redis_url is not None
    with redis_sync.Redis.from_url(night.settings.redis_url) as client:
        return sum(client.delete(name) for name in _leases(night))


@pytest.mark.slow
async def test_sigterm(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    """A process that is asked to leave finishes what is in flight, gives back the rest, and exits with 0; another
    one goes on, and nobody needs to take anything over."""
    behaviours = {"A": Bank(slow_ms=300), "B": Bank(slow_ms=300)}
    async with house(database_url, redis_url, key_prefix, tmp_path, qps=60, **behaviours) as night:
        night.order(120)
        await night.load()
        with night.process("work") as process:
            await night.received(30)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
        left = len(night.banks.entries())
        recorded = night.record("SELECT count(*) FROM delivery_log WHERE outcome = 'succeeded'")
        assert recorded == [(left,)]
        assert night.record("SELECT count(*) FROM worker WHERE ended_at IS NULL") == [(0,)]
        assert _leases(night) == []

        await night.hire()
        await night.drained()
        assert len(night.accepted()) == 120
        assert {entry.id for entry in night.accepted()} == night.ids


@pytest.mark.slow
@pytest.mark.parametrize("step", ["take-after:16", "send-before:10", "send-after:10", "settle-after:2"])
async def test_a_killed_worker_is_followed(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, step: str
) -> None:
    """What it had in hand is taken over as Unknown and delivered; what the bank saw twice is flagged."""
    async with house(
        database_url, redis_url, key_prefix, tmp_path, qps=40, answer_within="1s", A=Bank(), B=Bank()
    ) as night:
        night.order(60)
        await night.load()
        with night.process("work", failpoint=step) as process:
            await night.until(lambda: ended_by_itself(process))
        assert _end_leases(night) == 1
        await night.hire()
        await night.drained()
        accepted = Counter(entry.id for entry in night.accepted())
        flagged = {key for key, (_, twice) in night.statuses().items() if twice}
        assert accepted.keys() == night.ids
        assert {key for key, count in accepted.items() if count > 1} <= flagged
        taken_over = night.record("SELECT count(*) FROM delivery_log WHERE reason = 'worker died'")
        assert taken_over == [(len(flagged),)]
        assert len(flagged) < 60


@pytest.mark.slow
async def test_a_lost_lease(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    """A worker whose lease ended goes on under a new id, finishes what it was sending, and nothing is doubled."""
    behaviours = {"A": Bank(slow_ms=100), "B": Bank(slow_ms=100)}
    async with house(database_url, redis_url, key_prefix, tmp_path, qps=40, **behaviours) as night:
        night.order(120)
        colleague = await night.hire()
        await night.load()
        await night.received(20)
        first = colleague.worker.dispatcher.worker
        assert _end_leases(night) == 1
        await colleague.worker.beat()
        assert colleague.worker.dispatcher.worker != first
        await night.drained()
        accepted = Counter(entry.id for entry in night.accepted())
        assert accepted.keys() == night.ids
        flagged = {key for key, (_, twice) in night.statuses().items() if twice}
        assert {key for key, count in accepted.items() if count > 1} <= flagged
        await colleague.leave()
        assert _leases(night) == []


@pytest.mark.slow
@pytest.mark.parametrize("step", ["load-after-claim", "load-after-stage", "load-before-commit"])
async def test_a_killed_loader_is_followed(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, step: str
) -> None:
    """Nothing of it is there before the next one loads all of it, under the same batch."""
    async with house(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as night:
        night.order(20)
        with night.process("batch", "run", JOB, "--date", DAY.isoformat(), failpoint=step) as process:
            await night.until(lambda: ended_by_itself(process))
        assert night.record("SELECT count(*) FROM event") == [(0,)]
        result = await night.load()
        assert (result.state, result.loaded_count, result.did_nothing) == (BatchState.RELEASED, 20, False)
        assert night.record("SELECT count(*) FROM batch") == [(1,)]


@pytest.mark.slow
async def test_two_schedulers_fire_once(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """At the same moment, for the same date: one loads, the other has nothing to do."""
    async with house(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as night:
        night.order(20)
        noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
        schedulers = [scheduler_for(night.settings, database_url, now=lambda: noon) for _ in range(2)]
        fired = await asyncio.gather(*(asyncio.to_thread(one.run_due) for one in schedulers))
        assert [[run.end for run in runs] for runs in sorted(fired, key=len)] == [[], [End.DONE]]
        assert night.record("SELECT count(*) FROM delivery") == [(20,)]

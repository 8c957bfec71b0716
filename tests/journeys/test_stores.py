"""A store goes away in the middle of a night and comes back: nothing is lost, and what came twice is flagged."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import redis as redis_sync

from madeira import commands
from madeira.bank_ledger import Bank
from madeira.embedded_server import await_end, awaited_pid
from madeira.embedded_valkey import PrivateValkey
from tests.journeys.house import Cable, House, house


def _restart(server: PrivateValkey) -> None:
    os.kill(awaited_pid(server), signal.SIGKILL)
    await_end(server.home)
    server.start()
    awaited_pid(server)


def _twice(night: House) -> set[str]:
    return {key for key, count in Counter(entry.id for entry in night.accepted()).items() if count > 1}


def _flagged(night: House) -> set[str]:
    return {key for key, (_, flagged) in night.statuses().items() if flagged}


@pytest.mark.slow
async def test_redis_is_killed_in_mid_drain(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str, tmp_path: Path
) -> None:
    """Recovery walks under a new generation; with every worker alive a plain restart duplicates nothing."""
    async with house(
        database_url, private_valkey.url, key_prefix, tmp_path, qps=60, A=Bank(), B=Bank()
    ) as night:
        night.order(240)
        await night.hire()
        await night.hire()
        await night.load()
        await night.received(80)
        _restart(private_valkey)
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        assert (_twice(night), _flagged(night)) == (set(), set())
        assert night.record("SELECT number, state FROM generation") == [(2, "open")]


@pytest.mark.slow
async def test_redis_is_emptied_in_mid_drain(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str, tmp_path: Path
) -> None:
    """FLUSHALL keeps the run_id, and is noticed by what is missing; everything is delivered all the same."""
    async with house(
        database_url, private_valkey.url, key_prefix, tmp_path, qps=60, A=Bank(), B=Bank()
    ) as night:
        night.order(240)
        await night.hire()
        await night.hire()
        await night.load()
        await night.received(80)
        with redis_sync.Redis.from_url(private_valkey.url) as client:
            client.flushall()
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        assert _twice(night) <= _flagged(night)


@pytest.mark.slow
async def test_a_pause_outlives_redis(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str, tmp_path: Path
) -> None:
    """A paused partner gets nothing, also after a restart of Redis, while the others go on; then it is resumed."""
    async with house(database_url, private_valkey.url, key_prefix, tmp_path, A=Bank(), B=Bank()) as night:
        night.order(40)
        await commands.set_paused(night.settings, "A", paused=True, who="test", why="", dry_run=False)
        await night.hire()
        await night.load()
        await night.until(lambda: len(night.accepted()) == 20)
        _restart(private_valkey)
        await night.until(lambda: night.record("SELECT number, state FROM generation") == [(2, "open")])
        assert {entry.bank for entry in night.banks.entries()} == {"B"}

        await commands.set_paused(night.settings, "A", paused=False, who="test", why="", dry_run=False)
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        assert _twice(night) == set()


@pytest.mark.slow
async def test_postgresql_is_away_for_a_while(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """What Redis has is sent meanwhile; when PostgreSQL is back all goes on by itself, nothing is doubled."""
    async with (
        Cable(database_url) as cable,
        house(
            cable.url, redis_url, key_prefix, tmp_path, record_url=database_url, qps=40, A=Bank(), B=Bank()
        ) as night,
    ):
        night.order(160)
        await night.hire()
        await night.hire()
        await night.load()
        await night.received(40)
        cable.pull()
        before = len(night.banks.entries())
        await night.received(before + 40)
        cable.mend()
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        assert (_twice(night), _flagged(night)) == (set(), set())
        assert night.record("SELECT number FROM generation") == [(1,)]


@pytest.mark.slow
async def test_redis_is_unreachable_for_a_while(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Sending stops without it, never on a guess; afterwards each worker adopts what it had, nothing is doubled."""
    async with (
        Cable(redis_url) as cable,
        house(database_url, cable.url, key_prefix, tmp_path, qps=60, A=Bank(), B=Bank()) as night,
    ):
        night.order(240)
        await night.hire()
        await night.hire()
        await night.load()
        await night.received(60)
        cable.pull()
        await night.until(
            lambda: not any(c.worker.dispatcher.outboxes["A"].sending for c in night.colleagues)
        )
        cable.mend()
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        assert (_twice(night), _flagged(night)) == (set(), set())
        assert night.record("SELECT number FROM generation") == [(1,)]

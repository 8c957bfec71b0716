"""A Redis that comes back without its last second looks whole, and nobody may send by it before recovery."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from madeira.bank_ledger import Bank
from madeira.embedded_server import await_end, awaited_pid
from madeira.embedded_valkey import PrivateValkey
from streams.delivery import State
from streams.errors import StaleGeneration
from streams.scripts import Place, Settlement
from streams.transit import Transit
from tests.journeys.house import house

_SENT = Settlement(
    place=Place("batch:1", "1-1"), delivery="s:1", attempt_id="AB/1/batch:1/1-1", state=State.SUCCEEDED, attempts=1,
    unknowns=0, possible_duplicate=False, delay_s=None, due_ms=None, outcome=b"",
)  # fmt: skip


@pytest.mark.slow
async def test_nothing_is_handed_out_again(
    database_url: str, private_valkey: PrivateValkey, key_prefix: str, tmp_path: Path
) -> None:
    """What was sent in the lost second is delivered and recorded once; take and settle wait for recovery."""
    behaviours = {"A": Bank(slow_ms=50), "B": Bank(slow_ms=50)}
    async with house(database_url, private_valkey.url, key_prefix, tmp_path, qps=40, **behaviours) as night:
        night.order(200)
        await night.hire()
        await night.hire()
        await night.load()
        await night.received(50)
        kept = tmp_path / "kept"
        shutil.copytree(private_valkey.home / "appendonlydir", kept)
        await night.received(90)
        os.kill(awaited_pid(private_valkey), signal.SIGKILL)
        await_end(private_valkey.home)
        shutil.rmtree(private_valkey.home / "appendonlydir")
        kept.rename(private_valkey.home / "appendonlydir")
        private_valkey.start()
        awaited_pid(private_valkey)
        await night.drained()
        assert {entry.id for entry in night.accepted()} == night.ids
        twice = {key for key, count in Counter(entry.id for entry in night.accepted()).items() if count > 1}
        assert twice == set()


async def test_take_is_stale_on_a_restarted_server(private_valkey: PrivateValkey, key_prefix: str) -> None:
    """With everything as it was, but for the scripts; a fence lets it in again."""
    transit = Transit.open(private_valkey.url, key_prefix)
    keys = transit.keys.partner("AB")
    bounds = {"interval_us": 1000, "guard_us": 1000, "max_in_flight": 9, "floor_percent": 20}
    try:
        await transit.scripts.fence(keys, generation=1, guard_us=1000)
        await transit.scripts.unfence(keys, generation=1, paused=False, **bounds)
        take = {"worker": "w", "limit": 1, "horizon": timedelta(milliseconds=50)}
        await transit.scripts.take(keys, generation=1, **take)  # type: ignore[arg-type]

        os.kill(awaited_pid(private_valkey), signal.SIGKILL)
        await_end(private_valkey.home)
        private_valkey.start()
        awaited_pid(private_valkey)
        await transit.redis.connection_pool.disconnect()
        assert not await transit.scripts.let_in()
        with pytest.raises(StaleGeneration):
            await transit.scripts.take(keys, generation=1, **take)  # type: ignore[arg-type]
        with pytest.raises(StaleGeneration):
            await transit.scripts.settle(keys, generation=1, settlements=[_SENT])

        await transit.scripts.fence(keys, generation=2, guard_us=1000)
        await transit.scripts.settle(keys, generation=2, settlements=[_SENT])
    finally:
        await transit.close()

"""A partner that is down, or asks for a pause: nothing is lost, nothing is dead, no attempt is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from madeira.bank_ledger import Bank
from pipelines.dispatch import Dispatcher
from streams import gauges
from streams.delivery import State
from streams.moves import Breaker
from streams.pace import from_us
from tests.pipelines.shift import Shift, shift
from tests.pipelines.test_meter import Told

ROWS = 120
AGES = timedelta(days=36_500)
"""The orders of the tests' night are of a date long ago."""


@asynccontextmanager
async def down(
    database_url: str, redis_url: str, key_prefix: str, folder: Path, bank: Bank, *, failures: int = 5
) -> AsyncIterator[Shift]:
    """A shift whose partner is allowed two attempts, before a breaker that opens after a few failures."""
    async with shift(database_url, redis_url, key_prefix, folder, bank=bank) as stage:
        partner = replace(stage.partners["AB"], max_attempts=2, breaker_failures=failures, max_age=AGES)
        stage.dispatcher.open(partner)
        await configure(stage, partner.breaker)
        yield stage


async def configure(stage: Shift, breaker: Breaker) -> None:
    """The bounds of AB's pace, as a worker writes them."""
    await stage.night.transit.scripts.configure(
        stage.night.keys(), generation=stage.dispatcher.generation, interval_us=1, guard_us=0,
        max_in_flight=1_000_000, floor_percent=20, breaker=breaker,
    )  # fmt: skip


async def time_passes(stage: Shift) -> None:
    """The next probe is due, a pause is over, and the rate is back."""
    await stage.night.transit.redis.hset(
        stage.night.keys().pace, mapping={"probe_next": 1, "paused_until": 0, "ramp_until": 0, "tat": 0}
    )


async def release(stage: Shift) -> None:
    """What is due goes back into its lane."""
    await stage.night.transit.scripts.release(
        stage.night.keys(), generation=stage.dispatcher.generation, limit=1_000
    )


async def hour(stage: Shift) -> None:
    """A turn in which everything that is due goes out once."""
    await time_passes(stage)
    await release(stage)
    await stage.turn()
    await stage.night.recorder.step()


async def by_status(stage: Shift) -> dict[tuple[object, ...], object]:
    """How many deliveries have which status, attempts and flag in PostgreSQL."""
    rows = await stage.night.sql(
        "SELECT status::text, attempts::int, possible_duplicate, count(*)::int FROM delivery GROUP BY 1, 2, 3"
    )
    return {row[:3]: row[3] for row in rows}


async def test_a_nights_outage_costs_nothing(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Through many probes that fail nobody dies with two attempts each; then all is delivered, doubts are told."""
    caplog.set_level(logging.INFO)
    async with down(database_url, redis_url, key_prefix, tmp_path, Bank(status=500)) as stage:
        batch = await stage.order(ROWS)
        await stage.turn()
        first = len(await stage.received())
        for _ in range(40):
            await hour(stage)
        assert len(await stage.received()) == first + 40, "one probe an hour"
        failed = await stage.night.sql(
            "SELECT count(*)::int, count(*) FILTER (WHERE NOT may_have_arrived)::int FROM delivery_log"
        )
        assert failed == [(first + 40, 0)]
        counted = {status for status in await by_status(stage) if status[1] != 0}
        assert counted == {("retrying", 1, False)}
        gauge = await gauges.gauge(stage.night.transit, stage.night.keys())
        assert gauge.broken is not None
        assert gauge.broken.reason == "500"

        stage.box.partner = replace(stage.box.partner, endpoint=stage.banks.endpoint("MENDED"))
        for _ in range(2 + ROWS // 20):  # a process begins some 24 sends in one turn
            await hour(stage)
        assert set(await by_status(stage)) == {("succeeded", 1, False), ("succeeded", 1, True), *counted}
        assert [r.message for r in caplog.records if r.message.startswith("breaker_")] == [
            "breaker_opened",
            "breaker_closed",
        ]

        # The counted ones wait for their level; another generation feeds what is due by its clock.
        await stage.night.open(2)
        stage.dispatcher.follow(2)
        await stage.dispatcher.beat()
        later = from_us(await gauges.now_us(stage.night.transit.redis)) + timedelta(hours=1)
        await stage.night.feeder.sweep(2, later)
        while any(s != "succeeded" for s in (await stage.night.statuses()).values()):
            await stage.turn()
            assert await stage.night.recorder.step(), "there is always something left to do"

        ids = [f"payment-orders:{batch}:{n}" for n in range(1, ROWS + 1)]
        accepted = [entry.id for entry in stage.banks.entries() if entry.accepted]
        assert sorted(accepted) == sorted(ids)
        tried = {entry.id for entry in stage.banks.entries() if entry.status == 500}
        flagged = await stage.night.sql(
            "SELECT event_id FROM delivery JOIN event ON event.id = event WHERE possible_duplicate"
        )
        assert {f"payment-orders:{event_id}" for (event_id,) in flagged} == tried


async def test_the_doubt_of_a_probe_outlasts_redis(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """A delivery that was only ever an uncounted probe is flagged when the record feeds it again."""
    async with down(database_url, redis_url, key_prefix, tmp_path, Bank(status=500), failures=1) as stage:
        await stage.order(1)
        now = await gauges.now_us(stage.night.transit.redis)
        await stage.night.transit.redis.hset(
            stage.night.keys().pace,
            mapping={"broken_since": now - 1_000_000, "probe_next": 1, "probe_wait": 5_000_000},
        )
        await stage.turn()
        await stage.night.recorder.step()
        assert await by_status(stage) == {("retrying", 0, False): 1}

        await stage.night.open(2)
        stage.dispatcher.follow(2)
        later = from_us(now) + timedelta(hours=1)
        assert await stage.night.feeder.sweep(2, later) == 1
        await time_passes(stage)
        (entry,) = await stage.night.take(1, generation=2)

        assert (entry.attempts, entry.possible_duplicate) == (0, True)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_wish_is_kept(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, status: int
) -> None:
    """A `Retry-After` holds back everything, is no attempt, and what was answered so goes out first afterwards."""
    bank = Bank(status=status, headers=(("Retry-After", "120"),))
    async with down(database_url, redis_url, key_prefix, tmp_path, bank) as stage:
        first = await stage.order(3)
        before = await gauges.now_us(stage.night.transit.redis)
        await stage.turn()
        await stage.night.recorder.step()
        received = len(await stage.received())
        assert received == 3
        assert await by_status(stage) == {("retrying", 0, False): 3}
        second = await stage.order(2)
        await release(stage)
        await stage.turn()
        assert len(await stage.received()) == received, "nothing goes out, fresh or not"
        gauge = await gauges.gauge(stage.night.transit, stage.night.keys())
        assert gauge.paused_until_us >= before + 120_000_000
        (due,) = await stage.night.sql("SELECT min(due_at) FROM delivery WHERE status = 'retrying'")
        assert due[0] >= from_us(before) + timedelta(seconds=120)  # type: ignore[operator]

        stage.box.partner = replace(stage.box.partner, endpoint=stage.banks.endpoint("READY"))
        await hour(stage)

        accepted = [entry for entry in stage.banks.entries() if entry.accepted]
        assert [entry.attempt for entry in accepted] == ["1"] * 5
        slots = await stage.night.sql(
            "SELECT split_part(event_id, ':', 1)::int FROM delivery_log "
            "WHERE outcome = 'succeeded' ORDER BY started_at"
        )
        assert [number for (number,) in slots] == [first] * 3 + [second] * 2
        assert await by_status(stage) == {("succeeded", 1, False): 5}


async def test_a_wish_for_ever_ends_by_age(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """What would be sent again only after `max_age` is dead as too old, with no attempt counted."""
    bank = Bank(status=429, headers=(("Retry-After", "600"),))
    async with down(database_url, redis_url, key_prefix, tmp_path, bank) as stage:
        stage.dispatcher.open(replace(stage.box.partner, max_age=timedelta(seconds=1)))
        await stage.order(1)
        await stage.turn()
        await stage.night.recorder.step()
        assert await stage.night.sql("SELECT status::text, cause, attempts::int FROM delivery") == [
            ("dead", "too_old", 0)
        ]


async def test_the_meter_counts_no_death_that_was_spared(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """A probe that would have been the last attempt is told as it is recorded."""
    async with down(database_url, redis_url, key_prefix, tmp_path, Bank(status=500), failures=1) as stage:
        told = Told()
        partner = replace(stage.box.partner, max_attempts=1)
        dispatcher = Dispatcher(
            stage.night.transit, stage.webhook, {"AB": partner}, worker="w", generation=1, meter=told
        )
        await dispatcher.begin("w")
        await stage.order(1)
        await stage.night.transit.redis.hset(
            stage.night.keys().pace, mapping={"broken_since": 1, "probe_next": 1, "probe_wait": 5_000_000}
        )
        await dispatcher.take("AB")
        await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())
        await dispatcher.settle("AB")

        assert told.sends == [("AB", "batch:1", (await stage.outcomes())[0][0])]
        assert told.sends[0][2].state is State.RETRYING

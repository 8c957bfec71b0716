"""What a meter is told of sends, and the trace id on its whole way from the event to every place that names it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec
import pytest

from pipelines.dispatch import Dispatcher
from pipelines.takeover import Takeover
from sinks.answer import Answer, Failed, SlotMissed
from sinks.webhook import Send, Webhook
from streams import leases
from streams.delivery import Attempt, Kind, State
from tests.pipelines.live import event, live
from tests.pipelines.night import WORKER, night, settlement
from tests.pipelines.night import attempt as ended
from tests.pipelines.shift import FORGIVING, STRICT, Shift, shift


@dataclass
class Told:
    """A meter that remembers."""

    sends: list[tuple[str, str, Attempt]] = field(default_factory=list)

    def settled(self, partner: str, lane: str, attempt: Attempt) -> None:
        """One more."""
        self.sends.append((partner, lane, attempt))


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> AsyncIterator[Shift]:
    """A night and a bank that behaves well."""
    async with shift(database_url, redis_url, key_prefix, tmp_path) as found:
        yield found


async def turn(dispatcher: Dispatcher) -> None:
    """Take, send, settle, once."""
    await dispatcher.take("AB")
    await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())
    await dispatcher.settle("AB")


async def test_each_send_is_told_once_as_it_is_recorded(stage: Shift) -> None:
    """A slot that was missed is no send; neither is handing the outcome in a second time."""
    told = Told()
    dispatcher = Dispatcher(
        stage.night.transit, stage.webhook, stage.partners, worker="w", generation=1, meter=told
    )
    await dispatcher.begin("w")
    batch = await stage.order(3)
    box = dispatcher.outboxes["AB"]
    box.partner = replace(box.partner, lateness=STRICT)
    await turn(dispatcher)
    assert told.sends == []
    box.partner = replace(box.partner, lateness=FORGIVING)
    await turn(dispatcher)
    await dispatcher.settle("AB")
    assert {(partner, lane) for partner, lane, _ in told.sends} == {("AB", f"batch:{batch}")}
    recorded = [attempt for attempt, _ in await stage.outcomes()]
    assert sorted(each.attempt_id for _, _, each in told.sends) == sorted(a.attempt_id for a in recorded)
    assert {each.attempt_id: each for _, _, each in told.sends} == {a.attempt_id: a for a in recorded}


class Unreadable:
    """An engine whose answer no rule can judge."""

    async def send(self, request: Send) -> Answer | Failed | SlotMissed:
        """An answer without a body, which there cannot be."""
        return Answer(200, None, cast("bytes", None), False, request.start, request.start)


async def test_an_unforeseen_end_is_told_and_logged_with_its_trace(
    stage: Shift, caplog: pytest.LogCaptureFixture
) -> None:
    """As unknown, which it is recorded as."""
    told = Told()
    dispatcher = Dispatcher(
        stage.night.transit, Unreadable(), stage.partners, worker="w", generation=1, meter=told
    )
    await dispatcher.begin("w")
    await stage.order(1)
    await turn(dispatcher)
    [(_, _, attempt)] = told.sends
    assert attempt.outcome is Kind.UNKNOWN
    [line] = [record for record in caplog.records if record.message == "answer_unforeseen"]
    assert vars(line)["fields"] == {"partner": "AB", "trace_id": "t1"}


async def test_what_is_taken_over_is_told(database_url: str, redis_url: str, key_prefix: str) -> None:
    """The send of a worker that died ended, too: as unknown."""
    told = Told()
    async with night(database_url, redis_url, key_prefix) as stores:
        await leases.acquire(stores.transit, "reaper")
        await stores.release(2, start=datetime.now(UTC))
        await stores.feeder.step(1)
        for entry in await stores.take(2):
            await stores.transit.redis.xclaim(
                stores.keys().lane(entry.place.lane), "senders", WORKER,
                min_idle_time=0, message_ids=[entry.place.entry], idle=60_000, justid=True,
            )  # fmt: skip
        takeover = Takeover(stores.pool, stores.transit, stores.partners, meter=told)
        assert await takeover.step(worker="reaper", generation=1) == 2
    assert [(partner, attempt.outcome) for partner, _, attempt in told.sends] == [("AB", Kind.UNKNOWN)] * 2


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A partner that takes everything: its endpoint, and the heads that it has read."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 17\r\nConnection: close\r\n\r\n" + b'{"success": true}'
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/payments", heads
    finally:
        server.close()
        await server.wait_closed()


async def test_one_trace_id_from_the_event_to_the_journal(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Inbound entry, record, header of the send, meter, outcome and journal name the same."""
    told, came = Told(), event("1")
    async with (
        night(database_url, redis_url, key_prefix, names=("AB",)) as stores,
        listening() as (endpoint, heads),
        Webhook.open(connections=4) as webhook,
    ):
        way = live(stores)
        await way.enqueue(came)
        while not await way.deliveries():
            await way.routed()
        partners = {
            "AB": replace(stores.partners["AB"], endpoint=endpoint, allow_private=True, lateness=FORGIVING)
        }
        dispatcher = Dispatcher(stores.transit, webhook, partners, worker=WORKER, generation=1, meter=told)
        await dispatcher.begin(WORKER)
        while not heads:
            await turn(dispatcher)
        await stores.recorder.step(10)
        trace_id = came.trace_id
        assert await stores.sql("SELECT trace_id FROM event") == [(trace_id,)]
        assert [f"\r\nX-Trace-Id: {trace_id}\r\n".encode() in head for head in heads] == [True]
        assert [attempt.trace_id for _, _, attempt in told.sends] == [trace_id]
        assert await stores.sql("SELECT trace_id, outcome FROM delivery_log") == [(trace_id, "succeeded")]


async def test_a_quarantined_outcome_is_logged_with_its_trace(
    database_url: str, redis_url: str, key_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its bytes say which; the delivery always."""
    caplog.set_level(logging.ERROR)
    async with night(database_url, redis_url, key_prefix) as stores:
        batch = await stores.release(2)
        await stores.feeder.step(1)
        first, second = await stores.take(2)
        # A status that no column holds.
        refused = msgspec.structs.replace(ended(first, State.SUCCEEDED), status_code=1_000_000)
        await stores.settle(settlement(first, refused))
        await stores.settle(settlement(second, ended(second, State.SUCCEEDED), outcome=b"\xc1"))
        await stores.recorder.step(10)
    lines = [vars(each)["fields"] for each in caplog.records if each.message == "outcome_quarantined"]
    assert {(line["delivery"], line["trace_id"]) for line in lines} == {
        (f"payment-orders:{batch}:1", "trace"),
        (f"payment-orders:{batch}:2", None),
    }

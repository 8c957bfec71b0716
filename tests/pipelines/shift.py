"""A worker's shift: a dispatcher on real servers that sends a night's orders to a real bank."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import msgspec

from madeira.bank_ledger import Bank
from madeira.banks import Banks
from pipelines.dispatch import Dispatcher, Outbox
from sinks.partner import Partner
from sinks.webhook import Webhook
from streams import leases
from streams.delivery import Attempt
from streams.gauges import gauge
from streams.lanes import Raw
from tests.partner import banks
from tests.pipelines.night import WORKER, Night, night

_attempts = msgspec.msgpack.Decoder(Attempt)
FORGIVING = timedelta(seconds=5)
STRICT = timedelta(seconds=-5)
"""A lateness that no send can keep: every slot is missed."""


@dataclass(frozen=True, slots=True)
class Shift:
    """A dispatcher that has its lease, and the bank AB that it sends to."""

    night: Night
    banks: Banks
    webhook: Webhook
    partners: dict[str, Partner]
    dispatcher: Dispatcher

    @property
    def box(self) -> Outbox:
        """What is in hand for AB."""
        return self.dispatcher.outboxes["AB"]

    async def order(self, rows: int) -> int:
        """A batch of so many rows for AB, fed; answers its number."""
        batch = await self.night.release(rows)
        await self.night.feeder.step(self.dispatcher.generation)
        return batch

    async def sent(self) -> None:
        """Every send that is under way has ended."""
        while self.box.sending:
            await asyncio.gather(*self.box.sending.values())

    async def turn(self) -> None:
        """Take, send, settle, once."""
        await self.dispatcher.take("AB")
        await self.sent()
        await self.dispatcher.settle("AB")

    def lateness(self, lateness: timedelta) -> None:
        """How late a send to AB may be from now on."""
        self.box.partner = replace(self.box.partner, lateness=lateness)

    async def outcomes(self, generation: int = 1) -> list[tuple[Attempt, str]]:
        """The outcome stream: each attempt, and `late` or `handed` where it was not in time."""
        entries = cast(
            "list[Raw]", await self.night.transit.redis.xrange(self.night.keys().outcomes(generation))
        )
        return [(_attempts.decode(fields[b"o"]), fields[b"l"].decode()) for _, fields in entries]

    async def received(self) -> list[str]:
        """What the bank received, by id, in the order of arrival."""
        return [entry.id for entry in self.banks.entries()]

    async def pending(self) -> int:
        """How many entries AB's pace counts as in somebody's hand."""
        return (await gauge(self.night.transit, self.night.keys())).pending

    async def lose_lease(self) -> None:
        """The lease is gone, as after a freeze of 15 s."""
        await leases.end(self.night.transit, self.dispatcher.worker)


@asynccontextmanager
async def shift(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    folder: Path,
    *,
    bank: Bank | None = None,
    at_once: int = 400,
) -> AsyncIterator[Shift]:
    """A night in generation 1 and a dispatcher that has begun."""
    async with (
        night(database_url, redis_url, key_prefix, names=("AB",)) as stores,
        banks(folder, AB=bank or Bank()) as received,
        Webhook.open(connections=64) as webhook,
    ):
        partners = {
            "AB": replace(
                stores.partners["AB"],
                endpoint=received.endpoint("AB"),
                allow_private=True,
                lateness=FORGIVING,
            )
        }
        dispatcher = Dispatcher(
            stores.transit, webhook, partners, worker=WORKER, generation=1, at_once=at_once
        )
        await dispatcher.begin(WORKER)
        yield Shift(stores, received, webhook, partners, dispatcher)
        for box in dispatcher.outboxes.values():
            for task in box.sending.values():
                task.cancel()

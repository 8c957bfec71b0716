"""Live events on real servers, for tests of router, feeder and recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from pipelines import deliveries
from pipelines.route import BY_ROUTING_KEY, Route
from pipelines.router import Router
from sinks.pool import borrow
from streams.inbound import Inbound, ingest
from streams.scripts import Entry
from tests.pipelines.night import Night

SHOP = "shop"
NOW_ISH = datetime.now(UTC)
MOMENT = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)
TO_KEY = Route("to-key", (BY_ROUTING_KEY,))
"""Every event goes to the partner that its routing key names."""


def event(
    event_id: str,
    key: str = "AB",
    *,
    body: bytes = b'{"n": 1.0}',
    event_type: str = "payment.created",
    tags: dict[str, str] | None = None,
) -> Inbound:
    """An event whose request was its payload."""
    return Inbound(
        event_id=event_id,
        event_type=event_type,
        source=SHOP,
        tenant="default",
        payload=body,
        body_sha256=sha256(body).digest(),
        trace_id=sha256(event_id.encode()).hexdigest()[:32],
        created_at=NOW_ISH,
        routing_key=key,
        tags=tags or {},
    )


@dataclass(frozen=True, slots=True)
class Live:
    """A night and a router on it."""

    night: Night
    router: Router

    async def enqueue(self, *events: Inbound) -> None:
        """Accepted by Redis alone."""
        await ingest(self.night.transit, events, remember=[HOUR] * len(events))

    async def record(self, *events: Inbound, since: timedelta = timedelta(0)) -> None:
        """Accepted by PostgreSQL so long ago; Redis does not know."""
        async with borrow(self.night.pool) as connection:
            numbers = await deliveries.insert(connection, events)
            await connection.execute(
                "INSERT INTO unrouted (event, since) SELECT unnest(%s::bigint[]), now() - %s",
                (list(numbers.values()), since),
            )

    async def accept(self, *events: Inbound) -> None:
        """Accepted by both, as with durability postgres."""
        await self.record(*events)
        await self.enqueue(*events)

    async def routed(self, generation: int = 1) -> int:
        """Steps until nothing is left; answers how many events were dealt with."""
        total = 0
        while done := (await self.router.step(generation, block=MOMENT)).events:
            total += done
        return total

    async def lane(self, name: str = "AB") -> list[str]:
        """Event ids in the partner's live lane, in their order."""
        entries = await self.night.transit.redis.xrange(self.night.keys(name).lane("live"))
        return [fields[b"d"].decode().partition(":")[2] for _, fields in entries]

    async def deliveries(self) -> list[tuple[object, ...]]:
        """Event id, partner, status and generation of each."""
        return await self.night.sql(
            """SELECT event_id, partner, status::text, fed_generation FROM delivery JOIN event ON event.id = event
               ORDER BY event_id, partner"""
        )

    async def take(self, limit: int = 1000, *, generation: int = 1, name: str = "AB") -> tuple[Entry, ...]:
        """What a worker gets."""
        return await self.night.take(limit, generation=generation, name=name)


def live(night: Night, routes: Sequence[Route] = (TO_KEY,)) -> Live:
    """A router on this night."""
    return Live(night, Router(night.pool, night.transit, night.partners, routes))

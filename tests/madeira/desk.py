"""The HTTP API on real servers and a real socket, and a client that can also send what no client library would."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

import msgspec
from psycopg_pool import AsyncConnectionPool

from madeira.api import Api
from madeira.listener import Listener
from madeira.metrics import Endpoint, Refusal
from pipelines.intake import Intake
from pipelines.live_source import Durability, LiveSource
from sinks.pool import borrow, open_pool
from streams.inbound import Inbound, decode
from streams.transit import Transit

KEY = b"the shop's secret"
SHOP = LiveSource("shop", (KEY,), max_body=4096)
QUICK = LiveSource("quick", (KEY,), durability=Durability.REDIS, max_body=100_000)

Headers = Iterable[tuple[str, str]]


class Counted:
    """What was counted, by name and reason."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()

    def accepted(self, source: str, durability: Durability, n: int = 1) -> None:
        self.events[source, f"accepted {durability}"] += n

    def duplicate(self, source: str, durability: Durability, n: int = 1) -> None:
        self.events[source, f"duplicate {durability}"] += n

    def refused(self, source: str, reason: Refusal, n: int = 1) -> None:
        self.events[source, reason.value] += n

    def ingested(self, endpoint: Endpoint, seconds: float) -> None:
        assert seconds >= 0
        self.events["", endpoint.value] += 1

    async def render(self) -> bytes:
        return b"# EOF\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came over the wire; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        """The body's object."""
        return msgspec.json.decode(self.body, type=dict[str, object])

    def lines(self) -> list[dict[str, object]]:
        """The body's objects, one a line."""
        return msgspec.json.Decoder(dict[str, object]).decode_lines(self.body)

    def paths(self) -> list[str]:
        """Where the mistakes are."""
        errors = msgspec.convert(self.json().get("errors", []), list[dict[str, str]])
        return [error["path"] for error in errors]

    def problem(self) -> str:
        """The kind of a refusal; it says so in its header, too."""
        assert self.headers["content-type"] == "application/problem+json"
        found = self.json()
        assert found["status"] == self.status
        return str(found["type"]).removeprefix("urn:madeira:problem:")


def signed(
    body: bytes, *, source: str = "shop", key: bytes = KEY, at: int | None = None
) -> list[tuple[str, str]]:
    """The three headers that prove a body (or a path)."""
    timestamp = str(int(time.time()) if at is None else at)
    signature = hmac.new(key, timestamp.encode() + b"\n" + body, sha256).hexdigest()
    return [
        ("Madeira-Source", source),
        ("Madeira-Timestamp", timestamp),
        ("Madeira-Signature", signature),
    ]


def raw(method: str, path: str, headers: Headers, body: bytes = b"") -> bytes:
    """A request as bytes; nothing is added but Host."""
    lines = [f"{method} {path} HTTP/1.1", "Host: madeira", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


@dataclass(slots=True)
class Desk:
    """A served API."""

    port: int
    api: Api
    listener: Listener
    intake: Intake
    counted: Counted
    pool: AsyncConnectionPool
    transit: Transit

    async def say(self, request: bytes) -> Reply:
        """Send these bytes on a connection of their own, and hear one answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await hear(reader, head=request.startswith(b"HEAD"))
        finally:
            writer.close()

    async def post(
        self,
        body: bytes,
        *more: tuple[str, str],
        path: str = "/v1/events",
        content_type: str = "application/json",
        source: str = "shop",
        key: bytes = KEY,
    ) -> Reply:
        """Post a signed body."""
        headers = [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            *signed(body, source=source, key=key),
            *more,
        ]
        return await self.say(raw("POST", path, headers, body))

    async def bulk(self, lines: Iterable[bytes], *, source: str = "shop") -> Reply:
        """Post lines."""
        body = b"\n".join(lines)
        return await self.post(
            body, path="/v1/events/bulk", content_type="application/x-ndjson", source=source
        )

    async def get(self, path: str, *, source: str = "shop", key: bytes = KEY) -> Reply:
        """Get a path, which is what is signed."""
        return await self.say(raw("GET", path, signed(path.encode(), source=source, key=key)))

    async def entries(self) -> list[Inbound]:
        """What waits in Redis for a router."""
        found = []
        for shard in self.transit.keys.inbound:
            entries = await self.transit.redis.xrange(shard.stream)
            found += [decode(fields[b"e"]) for _, fields in entries]
        return found

    async def sql(self, query: str) -> list[tuple[object, ...]]:
        """Rows of a query."""
        async with borrow(self.pool) as connection:
            return list(await (await connection.execute(query.encode())).fetchall())


async def hear(reader: asyncio.StreamReader, *, head: bool = False) -> Reply:
    """The next answer; what says only `100 Continue` is none."""
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    status = int(start.split(" ")[1])
    if status == 100:
        return await hear(reader)
    body = b"" if head else await reader.readexactly(int(headers["content-length"]))
    return Reply(status, headers, body)


@asynccontextmanager
async def desk(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    *,
    sources: Iterable[LiveSource] = (SHOP, QUICK),
    body_within: timedelta = timedelta(seconds=60),
    most_held: int = 128 << 20,
    most_connections: int = 1000,
    processes: int = 1,
) -> AsyncIterator[Desk]:
    """The API before these servers, which may be away."""
    pool = await open_pool(database_url, name="test", connections=4, wait=timedelta(seconds=0.5))
    transit = Transit.open(redis_url, key_prefix)
    intake, counted = Intake(pool, transit), Counted()
    await intake.look()
    api = Api(intake, counted, body_within=body_within, most_held=most_held, processes=processes)
    api.adopt({source.name: source for source in sources}, unready=["unready"])
    listener = Listener(api, most_connections=most_connections)
    port = await listener.start("127.0.0.1", 0)
    try:
        yield Desk(port, api, listener, intake, counted, pool, transit)
    finally:
        await listener.stop(timedelta(seconds=5))
        await intake.close()
        await pool.close()
        await transit.close()


def event(event_id: str, **more: object) -> bytes:
    """A small event."""
    return msgspec.json.encode({"event_id": event_id, "event_type": "payment.created", "payload": {}, **more})

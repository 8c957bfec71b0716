"""The senders of live events: signed requests made beforehand, posted over connections that are kept alive.

    python -m tests.bench.senders --port PORT --source SOURCE --count COUNT [--connections N] [--per-second N]
        [--lines N] [--prefix TEXT] [--routing-key KEY]

Everything that can be done before the first post is, so that this process takes little of the machine from the
one that it measures. Without `--per-second` each connection posts again as soon as it is answered; with it a post
leaves at its time, and what it waited for a free connection counts as its own. `--lines` posts in bulk. A prefix
that ends in `!` is the id itself: every post has the same. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import time
from collections import Counter

import uvloop

from tests.bench.site import KEY

_BODY_BYTES = 500


def event(event_id: str, *, routing_key: str) -> bytes:
    """The JSON of one event: a payload that makes it `_BODY_BYTES` long."""
    head = b'{"event_id": "%b", "event_type": "bench", "routing_key": "%b", "payload": {"text": "' % (
        event_id.encode(),
        routing_key.encode(),
    )
    return head + b"x" * (_BODY_BYTES - len(head) - 3) + b'"}}'


def request(body: bytes, *, source: str, lines: int) -> bytes:
    """The whole signed request."""
    timestamp = str(int(time.time())).encode()
    path, kind = (
        (b"/v1/events/bulk", b"application/x-ndjson") if lines else (b"/v1/events", b"application/json")
    )
    return (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
        b"Madeira-Source: %b\r\nMadeira-Timestamp: %b\r\nMadeira-Signature: %b\r\n\r\n%b"
        % (
            path,
            kind,
            len(body),
            source.encode(),
            timestamp,
            hmac.new(KEY.encode(), timestamp + b"\n" + body, hashlib.sha256).hexdigest().encode(),
            body,
        )
    )


class _Connection(asyncio.Protocol):
    """One post at a time; `post` gives the answer's status and body."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answered: asyncio.Future[tuple[int, bytes]]
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # uvloop's transports are no subclass

    def post(self, whole: bytes) -> asyncio.Future[tuple[int, bytes]]:
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(whole)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        low = head.lower()
        at = low.find(b"\r\ncontent-length:")
        in_chunks = at < 0
        if (
            rest.endswith(b"0\r\n\r\n")
            if in_chunks
            else len(rest) >= int(low[at + 17 :].split(b"\r\n", 1)[0])
        ):
            self._buffer = b""
            self._answered.set_result((int(head[9:12]), rest))

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "_answered") and not self._answered.done():
            self._answered.set_exception(ConnectionError("the server hung up"))


async def post_all(
    posts: list[bytes], *, port: int, connections: int, per_second: float
) -> dict[str, object]:
    """Post everything; the answers counted by status, and how long they took."""
    loop = asyncio.get_running_loop()
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    lanes = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(connections)]
    answers: Counter[str] = Counter()
    took: list[float] = []

    async def one(connection: _Connection, whole: bytes, due: float) -> None:
        status, body = await connection.post(whole)
        took.append(time.perf_counter() - due)
        for word in (b"accepted", b"duplicate", b"refused"):
            # Each event's answer begins with its status or its line: an id or a title never holds the word in quotes.
            if count := body.count(b'"%b"' % word):
                answers[f"{status} {word.decode()}"] += count
        if status not in {200, 202}:
            answers[str(status)] += 1

    async def one_lane(connection: _Connection) -> None:
        for whole in left:
            await one(connection, whole, time.perf_counter())

    async def at_its_time(whole: bytes, due: float) -> None:
        connection = await free.get()
        try:
            await one(connection, whole, due)
        finally:
            free.put_nowait(connection)

    started, cpu = time.perf_counter(), time.process_time()
    if per_second:
        for lane in lanes:
            free.put_nowait(lane)
        async with asyncio.TaskGroup() as group:
            for number, whole in enumerate(posts):
                due = started + number / per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(at_its_time(whole, due))
    else:
        left = iter(posts)
        await asyncio.gather(*map(one_lane, lanes))
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    took.sort()
    return {
        "seconds": seconds,
        "per_second": len(posts) / seconds,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[len(took) * 99 // 100] * 1000,
        "cpu_share": used / seconds,
        "answers": answers,
    }


def main() -> None:
    """Read the arguments, make the requests, post them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--per-second", type=float, default=0.0)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--prefix", default="e")
    parser.add_argument("--routing-key", default="P")
    asked = parser.parse_args()

    def named(number: int) -> bytes:
        event_id = asked.prefix[:-1] if asked.prefix.endswith("!") else f"{asked.prefix}-{number}"
        return event(event_id, routing_key=asked.routing_key)

    each = max(1, asked.lines)
    posts = [
        request(
            b"\n".join(named(number) for number in range(first, first + each)),
            source=asked.source,
            lines=asked.lines,
        )
        for first in range(0, asked.count * each, each)
    ]
    print(
        json.dumps(
            uvloop.run(
                post_all(posts, port=asked.port, connections=asked.connections, per_second=asked.per_second)
            )
        )
    )


if __name__ == "__main__":
    main()

"""The HTTP side of `madeira serve`: signed events come in, and their senders may ask where they are.

One coroutine answers a request, without router, middleware or a line of log. What it knows of sources is swapped as
a whole by `adopt`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from aiohttp import web

from madeira.answers import (
    STORE_RETRY_S,
    Line,
    LineRefused,
    LineTaken,
    Refused,
    each_line,
    found_at,
    judge,
    line_of,
    line_refused,
    mistaken,
    taken,
    trace_id_of,
)
from madeira.door import Door
from madeira.format import read, trace_of
from madeira.inlet import Room, body_at_hand, body_of, claim_of, content_fault
from madeira.metrics import CONTENT_TYPE, Endpoint, Refusal
from madeira.problem import JSON, NDJSON, Answer, Kind, problem
from pipelines.intake import Intake
from pipelines.live_source import Durability, LiveSource
from streams.envelope import EVENT_ID
from streams.errors import StoreUnavailable
from streams.inbound import Inbound, Verdict

log = logging.getLogger(__name__)

EVENTS: Final = "/v1/events"
BULK: Final = "/v1/events/bulk"
BULK_BODY: Final = 16 << 20
BULK_LINES: Final = 10_000
BODY_WITHIN: Final = timedelta(seconds=10)
MOST_HELD: Final = 128 << 20
"""Bytes of bodies that one process holds, all requests together."""

OPENAPI: Final = Path(__file__).with_name("openapi.json")
_JSON: Final = frozenset({JSON})
_LINES: Final = frozenset({NDJSON, "application/ndjson", "application/jsonl", JSON})
_LINES_AT_ONCE: Final = 500  # read without letting others have their turn: about 5 ms
_MISTAKES_TOLD: Final = 1_000  # of a whole bulk; a line behind them tells its first one and how many more
_UNKNOWN: Final = LiveSource("")
_REASONS: Final = {
    Kind.FORMAT: Refusal.FORMAT,
    Kind.HEADERS: Refusal.SIGNATURE,
    Kind.SIGNATURE: Refusal.SIGNATURE,
    Kind.SLOW: Refusal.SLOW,
    Kind.CONFLICT: Refusal.CONFLICT,
    Kind.SIZE: Refusal.SIZE,
    Kind.CONTENT: Refusal.CONTENT,
    Kind.RATE: Refusal.RATE,
    Kind.STORE: Refusal.STORE,
    Kind.FULL: Refusal.FULL,
    Kind.NOT_READY: Refusal.NOT_READY,
    Kind.LEAVING: Refusal.LEAVING,
}


class Counts(Protocol):
    """What is counted of requests; `madeira.metrics.Metrics`."""

    def accepted(self, source: str, durability: Durability, n: int = 1) -> None: ...
    def duplicate(self, source: str, durability: Durability, n: int = 1) -> None: ...
    def refused(self, source: str, reason: Refusal, n: int = 1) -> None: ...
    def ingested(self, endpoint: Endpoint, seconds: float) -> None: ...
    async def render(self) -> bytes: ...


class Api:
    """Answers every request of one process. Call `adopt` before the first."""

    def __init__(
        self,
        intake: Intake,
        counts: Counts,
        *,
        processes: int = 1,
        body_within: timedelta = BODY_WITHIN,
        most_held: int = MOST_HELD,
        troubles: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`processes` share each source's rate. `troubles` names what else keeps this process from being ready."""
        self._intake = intake
        self._counts = counts
        self._processes = processes
        self._body_within = body_within
        self._room = Room(most_held)
        self._troubles = troubles
        self._doors: dict[str, Door] = {}
        self._nobody = Door(_UNKNOWN, 1)
        self._unready: frozenset[str] = frozenset()
        self._largest = _UNKNOWN.max_body
        self._openapi = OPENAPI.read_bytes()
        self._traces: list[str] = []
        self._under_way = 0
        self._leaving = False
        self._idle: asyncio.Event | None = None

    def adopt(self, sources: Mapping[str, LiveSource], unready: Collection[str] = ()) -> None:
        """Let these in from now on; the rate of a source that changed begins anew.

        `unready` are sources whose secret is not set.
        """
        before = self._doors
        self._doors = {
            name: before[name]
            if name in before and before[name].source == source
            else Door(source, self._processes)
            for name, source in sources.items()
        }
        self._unready = frozenset(unready)
        self._largest = max([_UNKNOWN.max_body, *(source.max_body for source in sources.values())])

    def leave(self) -> None:
        """Refuse what comes from now on; `/readyz` says so."""
        self._leaving = True

    async def idle(self) -> None:
        """Until no request is under way."""
        if self._under_way:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to any request."""
        self._under_way += 1
        try:
            return await self._dispatch(request)
        except ConnectionError:
            # The client hung up: nobody reads this.
            return problem(Kind.SLOW, "the connection ended").closing()
        except Exception:
            log.exception("request_failed", extra={"fields": {"path": request.path[:200]}})
            return problem(Kind.INTERNAL, "see the log of this process").closing()
        finally:
            self._under_way -= 1
            if not self._under_way and self._idle is not None:
                self._idle.set()
                self._idle = None

    async def _dispatch(self, request: web.BaseRequest) -> Answer:
        target = request.raw_path
        if not target.startswith("/"):  # RFC 9112 3.2.2: a whole address is fine, too
            parts = urlsplit(target)
            target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        path = target.partition("?")[0]
        method = request.method
        if path in (EVENTS, BULK):
            if method != "POST":
                return _not_allowed("POST")
            begun = perf_counter()
            if path == EVENTS:
                answer = await self._post(request, Endpoint.ONE)
                self._counts.ingested(Endpoint.ONE, perf_counter() - begun)
            else:
                answer = await self._post(request, Endpoint.BULK)
                self._counts.ingested(Endpoint.BULK, perf_counter() - begun)
            return answer
        if path.startswith(f"{EVENTS}/"):
            if method not in ("GET", "HEAD"):
                return _not_allowed("GET, HEAD")
            return await self._get(request, target, unquote(path.removeprefix(f"{EVENTS}/")))
        if path not in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            return problem(Kind.NOT_FOUND, "see /openapi.json for what is here")
        if method not in ("GET", "HEAD"):
            return _not_allowed("GET, HEAD")
        if path == "/healthz":
            return Answer(200, b'{"status":"alive"}')
        if path == "/readyz":
            return self._ready()
        if path == "/metrics":
            return Answer(200, await self._counts.render(), CONTENT_TYPE)
        return Answer(200, self._openapi)

    def _ready(self) -> Answer:
        away = sorted(str(store) for store in self._intake.health())
        away += self._troubles()
        if self._leaving:
            away.append("leaving")
        if away:
            return Answer(503, msgspec.json.encode({"status": "not_ready", "away": away}))
        return Answer(200, b'{"status":"ready"}')

    # ------------------------------------------------------------------------------------------ events in

    async def _post(self, request: web.BaseRequest, endpoint: Endpoint) -> Answer:
        one = endpoint is Endpoint.ONE
        if self._leaving:
            return self._refuse("", Refused(Kind.LEAVING, "try again at once", retry_after_s=1)).closing()
        now = self._intake.now()
        claim = claim_of(request, now_s=now.timestamp())
        if isinstance(claim, Answer):
            self._counts.refused(request.headers.get("Madeira-Source", ""), Refusal.SIGNATURE)
            return claim
        fault = content_fault(request, _JSON if one else _LINES)
        if fault is not None:
            self._counts.refused(claim.source, Refusal.CONTENT)
            return fault
        held = self._room.held()
        try:
            # Before the signature everybody has the largest limit: a source's own would say that it exists.
            limit = self._largest if one else BULK_BODY
            body = body_at_hand(request, held, limit=limit)
            if body is None:
                body = await body_of(request, held, limit=limit, within=self._body_within)
            if isinstance(body, Answer):
                return self._without(body, claim.source)
            door = self._proved(claim.source, body, timestamp=claim.timestamp, signature=claim.signature)
            if isinstance(door, Answer):
                return door
            if one:
                return await self._one(door, body, now, request.headers.get("traceparent"))
            return await self._many(door, body, now)
        finally:
            held.give_back()

    def _without(self, answer: Answer, source: str) -> Answer:
        """The answer to a request whose body did not come, counted."""
        reason = {408: Refusal.SLOW, 413: Refusal.SIZE, 503: Refusal.STORE}.get(answer.status, Refusal.FORMAT)
        self._counts.refused(source, reason)
        return answer

    def _proved(self, source: str, message: bytes, *, timestamp: str, signature: str) -> Door | Answer:
        """The door of whoever signed these bytes, if they did."""
        if source in self._unready:
            return self._refuse(
                source, Refused(Kind.NOT_READY, "a secret of the source is not set", retry_after_s=60)
            )
        door = self._doors.get(source, self._nobody)
        if not door.verifier.fits(message, timestamp=timestamp, signature=signature):
            return self._refuse(
                source,
                Refused(
                    Kind.SIGNATURE,
                    "the source is not known, or none of its secrets made this signature over"
                    " timestamp, newline and the raw body (the path where there is no body)",
                ),
            )
        return door

    async def _one(self, door: Door, body: bytes, now: datetime, traceparent: str | None) -> Answer:
        source = door.source
        if len(body) > source.max_body:
            return self._refuse(source.name, Refused(Kind.SIZE, f"at most {source.max_body} bytes are taken"))
        if not await door.one():
            return self._refuse(source.name, door.over_rate())
        event = read(
            body,
            source=source.name,
            tenant=source.tenant,
            created_at=now,
            trace_id=trace_of(traceparent) or self._new_trace(),
        )
        if not isinstance(event, Inbound):
            return self._refuse(source.name, mistaken(event))
        [answer] = await self._intake.accept((event,), source)
        judged = judge(event, answer)
        if isinstance(judged, Refused):
            return self._refuse(source.name, judged)
        if judged is Verdict.ACCEPTED:
            self._counts.accepted(source.name, source.durability)
        else:
            self._counts.duplicate(source.name, source.durability)
        return taken(judged, event.event_id, trace_id_of(answer))

    def _new_trace(self) -> str:
        """16 random bytes in hex, from a block of them: a call of the system for each event is felt."""
        if not self._traces:
            fresh = secrets.token_hex(16 * 256)
            self._traces = [fresh[at : at + 32] for at in range(0, len(fresh), 32)]
        return self._traces.pop()

    def _refuse(self, source: str, refused: Refused) -> Answer:
        self._counts.refused(source, _REASONS[refused.kind])
        return problem(
            refused.kind,
            refused.detail,
            errors=refused.errors,
            trace_id=refused.trace_id,
            retry_after_s=refused.retry_after_s,
        )

    # --------------------------------------------------------------------------------------- many at once

    async def _many(self, door: Door, body: bytes, now: datetime) -> Answer:
        lines = body.split(b"\n")
        if len(lines) - (lines[-1] == b"") > BULK_LINES:
            return self._refuse(door.source.name, Refused(Kind.SIZE, f"at most {BULK_LINES} lines are taken"))
        told: dict[int, Line] = {}
        flushes = []
        over = False
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(lines), _LINES_AT_ONCE):
                numbered = [
                    (number, line.strip())
                    for number, line in enumerate(lines[start : start + _LINES_AT_ONCE], start=start + 1)
                ]
                numbered = [(number, line) for number, line in numbered if line]
                # After the first that is over the rate all are: whoever sends the rest again keeps their order.
                allowed = 0 if over else await door.many(len(numbered))
                over = allowed < len(numbered)
                for number, _ in numbered[allowed:]:
                    told[number] = line_refused(number, door.over_rate())
                events = await self._read_lines(door.source, numbered[:allowed], now, told)
                if events:
                    taking = self._intake.accept([event for _, event in events], door.source)
                    flushes.append((events, group.create_task(taking)))
                await asyncio.sleep(0)
        for events, task in flushes:
            for (number, event), answer in zip(events, task.result(), strict=True):
                told[number] = line_of(number, event, answer)
        return self._tell(door.source, [told[number] for number in sorted(told)])

    async def _read_lines(
        self,
        source: LiveSource,
        lines: Sequence[tuple[int, bytes]],
        now: datetime,
        told: dict[int, Line],
    ) -> list[tuple[int, Inbound]]:
        events = []
        room = _MISTAKES_TOLD - sum(
            len(line.errors) for line in told.values() if isinstance(line, LineRefused)
        )
        for number, line in lines:
            if len(line) > source.max_body:
                told[number] = line_refused(
                    number, Refused(Kind.SIZE, f"at most {source.max_body} bytes are taken")
                )
                continue
            event = read(
                line,
                source=source.name,
                tenant=source.tenant,
                created_at=now,
                trace_id=self._new_trace(),
            )
            if isinstance(event, Inbound):
                events.append((number, event))
            else:
                room -= len(event)
                told[number] = line_refused(number, mistaken(event, all_of_them=room >= 0))
                await asyncio.sleep(0)  # to find out what is wrong takes ten times as long as to read
        return events

    def _tell(self, source: LiveSource, lines: Sequence[Line]) -> Answer:
        """One answer for all lines; 503 where nothing but a store is the reason for every one."""
        counted: dict[str | Kind, int] = {}
        for line in lines:
            key = line.status if isinstance(line, LineTaken) else line.kind
            counted[key] = counted.get(key, 0) + 1
        if counted and counted.keys() <= {Kind.STORE, Kind.FULL}:
            refused = lines[0]
            assert isinstance(refused, LineRefused)
            kind = refused.kind
            self._counts.refused(source.name, _REASONS[kind], len(lines))
            return problem(kind, refused.detail, retry_after_s=STORE_RETRY_S)
        for key, n in counted.items():
            if isinstance(key, Kind):
                self._counts.refused(source.name, _REASONS[key], n)
            elif key == "accepted":
                self._counts.accepted(source.name, source.durability, n)
            else:
                self._counts.duplicate(source.name, source.durability, n)
        return each_line(lines)

    # ------------------------------------------------------------------------------------- where is it now

    async def _get(self, request: web.BaseRequest, target: str, event_id: str) -> Answer:
        claim = claim_of(request, now_s=self._intake.now().timestamp())
        if isinstance(claim, Answer):
            return claim
        door = self._proved(
            claim.source,
            target.encode("utf-8", "surrogateescape"),
            timestamp=claim.timestamp,
            signature=claim.signature,
        )
        if isinstance(door, Answer):
            return door
        if not await door.lookup():
            return problem(Kind.RATE, door.over_rate().detail, retry_after_s=door.retry_s)
        try:
            found = (
                await self._intake.find(door.source.name, event_id) if EVENT_ID.fullmatch(event_id) else None
            )
        except StoreUnavailable:
            return problem(Kind.STORE, "the record does not answer", retry_after_s=STORE_RETRY_S)
        if found is None:
            return problem(Kind.NOT_FOUND, "this source has sent no event of that id")
        return found_at(found)


def _not_allowed(allowed: str) -> Answer:
    return problem(Kind.METHOD, f"use {allowed}", headers=f"Allow: {allowed}\r\n")

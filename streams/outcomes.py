"""Reading the outcome streams: what happened to each attempt, for the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from streams.connection import reached

START = "0-0"
"""The id before every other; also the offset of a stream of which nothing is recorded."""


class Timing(StrEnum):
    """How settle met the entry: in the worker's hand, no longer there, or while recovery was collecting.

    `TWICE`: no longer there, and a copy of it was in another hand, which may have sent it again. `CANCELLED`: no
    attempt at all, but a mark that a cancelled delivery was taken out, so that `forget` clears it up.
    """

    IN_TIME = ""
    LATE = "late"
    HANDED = "handed"
    TWICE = "twice"
    CANCELLED = "cancelled"


class OutcomeEntry(msgspec.Struct, frozen=True):
    """One entry of an outcome stream. `data` is the Attempt as settle was given it, `delivery` whose it is."""

    entry: str
    data: bytes
    timing: Timing
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """A stream's key and the entry up to which it was read."""

    stream: str
    last: str


_TIMINGS = {timing.value.encode(): timing for timing in Timing}


async def read(
    redis: Redis, positions: Sequence[Position], *, count: int
) -> tuple[tuple[OutcomeEntry, ...], ...]:
    """At most `count` entries after each position, oldest first, in one round trip.

    Raises `StoreUnavailable` when Redis does not answer.
    """
    pipeline = redis.pipeline(transaction=False)
    for position in positions:
        pipeline.xrange(position.stream, min=f"({position.last}", max="+", count=count)
    with reached():
        answers = await pipeline.execute()
    return tuple(
        tuple(
            OutcomeEntry(
                entry.decode(),
                fields.get(b"o", b""),
                _TIMINGS.get(fields.get(b"l", b""), Timing.LATE),
                fields.get(b"d", b"").decode(errors="replace"),
            )
            for entry, fields in answer
        )
        for answer in answers
    )


async def rewound(redis: Redis, positions: Sequence[Position]) -> tuple[str, ...]:
    """The streams that ended before their position: gone, or begun again with smaller ids.

    Raises `StoreUnavailable` when Redis does not answer.
    """
    pipeline = redis.pipeline(transaction=False)
    for position in positions:
        pipeline.execute_command("XINFO STREAM", position.stream)
    with reached():
        answers = await pipeline.execute(raise_on_error=False)
    lost = []
    for position, answer in zip(positions, answers, strict=True):
        if isinstance(answer, ResponseError):  # no such key
            lost.append(position.stream)
        elif isinstance(answer, Exception):
            with reached():
                raise answer
        elif order(answer["last-generated-id"].decode()) < order(position.last):
            lost.append(position.stream)
    return tuple(lost)


def order(entry: str) -> tuple[int, int]:
    """A stream id as numbers that compare as Redis orders them."""
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence)


async def end(redis: Redis, stream: str) -> str:
    """The id of the last outcome that was ever added to the stream, `START` where there is none."""
    with reached():
        try:
            info = await redis.xinfo_stream(stream)
        except ResponseError:  # no such key
            return START
    last: bytes = info["last-generated-id"]
    return last.decode()

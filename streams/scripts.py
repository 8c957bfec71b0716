"""One typed method for each script in `lua/`. Every move of a delivery through Redis is one of these.

Each is sent once: after `StoreUnavailable` it may have run, and what a second run does stands in its file.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from hiredis import pack_command
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from streams.connection import reached
from streams.delivery import State
from streams.errors import StaleGeneration, StoreUnavailable, TransitLost
from streams.keys import LIVE, PartnerKeys, batch_lane, returns_lane
from streams.moves import (
    NO_BREAKER,
    Breaker,
    Entry,
    Fed,
    Feed,
    PaceState,
    Place,
    Refused,
    Released,
    Settled,
    Settlement,
    Sign,
    Slot,
    Spared,
    Take,
    Withdrawn,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

__all__ = [
    "Entry",
    "Fed",
    "Feed",
    "PaceState",
    "Place",
    "Refused",
    "Released",
    "Scripts",
    "Settled",
    "Settlement",
    "Slot",
    "Take",
    "Withdrawn",
]

MOST_UNRECORDED = 20_000
"""Outcomes that PostgreSQL may be behind before taking stops."""

LONGEST_HORIZON = timedelta(seconds=2)
"""How far ahead a take may hand out; take.lua's bound for a clock that stepped back relies on it."""

_FRESH_AFTER_RETURNS = 1 << 40
_WITHIN_S = 5.0
_pack = msgspec.msgpack.Encoder().encode


class _Script:
    """A Lua file and its SHA-1."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (Path(__file__).parent / "lua" / f"{name}.lua").read_bytes()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


_TAKE = _Script("take")
_SETTLE = _Script("settle")
_GIVE_BACK = _Script("give_back")
_CANCEL = _Script("cancel")
_FEED = _Script("feed")
_RELEASE = _Script("release")
_REAP = _Script("reap")
_RECORDED = _Script("recorded")
_FORGET = _Script("forget")
_PAUSE = _Script("pause")
_POSTPONE = _Script("postpone")
_CONFIGURE = _Script("configure")
_FENCE = _Script("fence")
_UNFENCE = _Script("unfence")
_RETIRE = _Script("retire")
_LEASE = _Script("lease")
_INGEST = _Script("ingest")
_MAKE_GROUP = _Script("make_group")

_LET_IN = (_TAKE, _SETTLE)
_TURNED: dict[bytes, Literal["opened", "closed"] | None] = {
    b"": None,
    b"opened": "opened",
    b"closed": "closed",
}


def lane_order(lane: str) -> int:
    """The lane's score in `lanes`: live, then what returns to batches, then fresh rows, by batch number."""
    if lane == LIVE:
        return -1
    number = int(lane.split(":")[1])
    return number if lane.endswith(":returns") else number + _FRESH_AFTER_RETURNS


class Scripts:
    """The moves. All raise `StaleGeneration` (nothing was changed), `TransitLost` and `StoreUnavailable`."""

    __slots__ = ("_redis",)

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def _call(self, *command: str | int | bytes) -> object:
        reply: object = await self._redis.execute_command(*command)  # type: ignore[no-untyped-call] # redis-py's
        return reply

    async def _run(self, script: _Script, keys: Sequence[str], *arguments: str | int | bytes) -> object:
        with reached():
            try:
                reply = await self._call("EVALSHA", script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                if script in _LET_IN:
                    raise StaleGeneration(
                        f"{script.name}: Redis was started anew since it was fenced"
                    ) from None
                # Certain not to have run, so this is no second send.
                reply = await self._call("EVAL", script.text, len(keys), *keys, *arguments)
        if reply == b"STALE":
            raise StaleGeneration(f"{script.name}: {keys[0]} is missing or of another generation")
        if reply == b"LOST":
            raise TransitLost(f"{script.name}: {keys[0]} has lost a lane, a group or an entry")
        return reply

    async def take(
        self,
        keys: PartnerKeys,
        *,
        generation: int,
        worker: str,
        limit: int,
        horizon: timedelta,
        held: Sequence[Place] = (),
        lead: timedelta = timedelta(0),
    ) -> Take:
        """At most `limit` sends that begin from `lead` until `horizon` (up to 2 s) from now, `held` ones first.

        Held entries that are no longer pending under this worker are left out silently. Entries read before a
        `TransitLost` are pending under the worker.
        """
        if horizon > LONGEST_HORIZON:
            raise ValueError(f"horizon must be at most {LONGEST_HORIZON}, is {horizon}")
        places = [text for place in held for text in (place.lane, place.entry)]
        reply = cast(
            "list[bytes]",
            await self._run(
                _TAKE,
                (keys.pace, keys.lanes),
                generation,
                keys.base,
                worker,
                limit,
                lead // timedelta(microseconds=1),
                horizon // timedelta(microseconds=1),
                MOST_UNRECORDED,
                *places,
            ),
        )
        slots = []
        for i in range(4, len(reply), 8):
            lane, entry, start, delivery, attempts, unknowns, flag, envelope = reply[i : i + 8]
            place = Place(lane.decode(), entry.decode())
            # Lua's nil: the caller has it in hand.
            known = cast("bytes | None", delivery) is None
            slots.append(
                Slot(
                    place,
                    int(start),
                    None
                    if known
                    else Entry(
                        place, delivery.decode(), int(attempts), int(unknowns), flag == b"1", envelope
                    ),
                )
            )
        return Take(
            PaceState(reply[0].decode()), int(reply[1]), int(reply[2]), reply[3].decode(), tuple(slots)
        )

    async def settle(
        self, keys: PartnerKeys, *, generation: int, settlements: Sequence[Settlement]
    ) -> Settled:
        """Acks, writes outcomes and moves on, each at most once; what came late only adds its outcome.

        A late success takes the copy back wherever it is. A few hundred at a time. Passes while closed.
        """
        if not settlements:
            return Settled((), ())
        # MessagePack's bytes are beyond Redis's Lua, so what is opaque goes beside it.
        outcomes = [s.outcome for s in settlements]
        items = [
            (
                s.place.lane,
                s.place.entry,
                s.delivery,
                s.attempt_id,
                s.state,
                s.attempts,
                s.unknowns,
                int(s.possible_duplicate),
                s.delay_s,
                s.due_ms,
                s.sign,
                s.ended_us,
                s.pause_us,
                *((s.reason, s.spared and _beside(s.spared, outcomes)) if s.sign is Sign.FAILED else ()),
            )
            for s in settlements
        ]
        for s in settlements:
            if s.state is State.RETRYING and (s.delay_s is None or s.due_ms is None):
                raise ValueError(f"{s.attempt_id}: retrying needs delay_s and due_ms")
        reply = cast(
            "list[bytes]",
            await self._run(
                _SETTLE,
                (keys.pace, keys.open, keys.delays, keys.dead, keys.outcomes(generation)),
                generation,
                keys.base,
                _pack(items),
                *outcomes,
            ),
        )
        return Settled(
            tuple(entry.decode() for entry in reply[1::2]),
            tuple(int(late) == 1 for late in reply[2::2]),
            _TURNED[reply[0]],
        )

    async def give_back(self, keys: PartnerKeys, *, generation: int, places: Sequence[Place]) -> int:
        """Unsent entries to the tail of live or of the batch's returns; answers how many were pending."""
        texts = [text for place in places for text in (place.lane, place.entry)]
        reply = await self._run(_GIVE_BACK, (keys.pace, keys.lanes, keys.open), generation, keys.base, *texts)
        return cast("int", reply)

    async def cancel(
        self, keys: PartnerKeys, *, generation: int, deliveries: Sequence[tuple[str, int]]
    ) -> tuple[Withdrawn, ...] | None:
        """Takes out what waits and flags what is in a hand; a few hundred at a time. None: closed, ask again later.

        Each with the number of its cancellation. No feeder that read one of them before adds it afterwards. Call it
        when PostgreSQL has them as cancelled.
        """
        reply = await self._run(
            _CANCEL,
            (keys.pace, keys.open, keys.delays, keys.outcomes(generation)),
            generation,
            keys.base,
            *[text for delivery, number in deliveries for text in (delivery, number)],
        )
        return None if reply is None else tuple(Withdrawn(said) for said in cast("list[int]", reply))

    async def feed(
        self,
        keys: PartnerKeys,
        *,
        generation: int,
        lane: str,
        expect_last: str,
        read_at_us: int,
        rows: Sequence[Feed],
    ) -> Fed | Refused:
        """Adds what Redis does not have yet, in order; about a thousand at a time.

        `expect_last` is the lane's last id as the caller knows it ("0-0": the lane is not there; "": don't
        look), `read_at_us` the Redis time at which the rows' status was read from PostgreSQL. Rows with an
        `entry` come in rising order; the lane's last id ends at the last of them, fed or skipped.
        """
        packed = _pack(
            [
                (r.entry, r.delivery, r.attempts, r.unknowns, int(r.possible_duplicate), r.ended or None)
                for r in rows
            ]
        )
        try:
            reply = cast(
                "list[int | bytes]",
                await self._run(
                    _FEED,
                    (keys.pace, keys.lanes, keys.open, keys.lane(lane)),
                    generation,
                    lane,
                    lane_order(lane),
                    expect_last,
                    read_at_us,
                    packed,
                    *[r.envelope for r in rows],
                ),
            )
        except StoreUnavailable as error:
            if isinstance(error.__cause__, OutOfMemoryError):
                return Refused("full", "")
            raise
        match reply:
            case [bytes(reason), bytes(last)]:
                return msgspec.convert({"reason": reason.decode(), "last": last.decode()}, Refused)
            case [int(fed), int(skipped)]:
                return Fed(fed, skipped)
            case _:
                raise TypeError(f"feed answered {reply!r}")

    async def ingest(
        self, wire: Wire, shards: Sequence[tuple[Sequence[str], Sequence[bytes]]]
    ) -> tuple[list[int | bytes], ...]:
        """For each shard: its stream and the marks, and what `ingest.lua` wants of each event. See `streams.inbound`.

        All in one round trip. Raises `StoreUnavailable`, also where memory is full.
        """
        calls: list[tuple[str | int | bytes, ...]] = [
            ("EVALSHA", _INGEST.sha, len(keys), *keys, *arguments) for keys, arguments in shards
        ]
        with reached():
            replies = await wire.ask(calls)
            for i, call in enumerate(calls):
                reply = replies[i]
                if isinstance(reply, NoScriptError):
                    # Certain not to have run, so this is no second try.
                    [reply] = await wire.ask([("EVAL", _INGEST.text, *call[2:])])
                if isinstance(reply, Exception):
                    raise reply
                replies[i] = reply
        return tuple(cast("list[list[int | bytes]]", replies))

    async def make_group(self, stream: str) -> bool:
        """Make an inbound shard and its group, also at the memory limit; False where it is there."""
        return await self._run(_MAKE_GROUP, (stream,)) == 1

    async def lease(self, key: str, *, lasts: timedelta) -> bool:
        """Take a worker's lease, also at the memory limit; False when somebody has it."""
        return await self._run(_LEASE, (key,), lasts // timedelta(milliseconds=1)) == 1

    async def release(self, keys: PartnerKeys, *, generation: int, limit: int) -> Released:
        """Moves what is due by Redis time from the delay streams to its lane."""
        reply = await self._run(
            _RELEASE, (keys.pace, keys.lanes, keys.open, keys.delays), generation, keys.base, limit
        )
        count, due = cast("tuple[int, int | None]", reply)
        return Released(count, due)

    async def reap(
        self,
        keys: PartnerKeys,
        *,
        generation: int,
        lane: str,
        dead: str,
        reaper: str,
        min_idle: timedelta,
        limit: int,
    ) -> tuple[Entry, ...]:
        """Takes over from one dead consumer of one lane; `streams.leases` says who is dead."""
        reply = cast(
            "list[bytes]",
            await self._run(
                _REAP,
                (keys.pace, keys.lane(lane)),
                generation,
                reaper,
                min_idle // timedelta(milliseconds=1),
                limit,
                dead,
            ),
        )
        return tuple(
            Entry(
                Place(lane, reply[i].decode()),
                reply[i + 1].decode(),
                int(reply[i + 2]),
                int(reply[i + 3]),
                reply[i + 4] == b"1",
                reply[i + 5],
            )
            for i in range(0, len(reply), 6)
        )

    async def retire(self, keys: PartnerKeys, *, generation: int, batch_id: int) -> int:
        """Drops both lanes of a batch that is over, if they are empty; answers how many it dropped.

        Over: nothing of it can come back, so no entry id, and no attempt id made of it, is ever given twice.
        """
        names = (batch_lane(batch_id), returns_lane(batch_id))
        reply = await self._run(
            _RETIRE, (keys.pace, keys.lanes, *(keys.lane(name) for name in names)), generation, *names
        )
        return cast("int", reply)

    async def recorded(self, keys: PartnerKeys, *, generation: int, last: str, counted: int) -> None:
        """PostgreSQL has the outcomes up to `last`, `counted` of this generation in all. Never lowers."""
        await self._run(_RECORDED, (keys.pace,), generation, last, counted)

    async def forget(self, keys: PartnerKeys, *, generation: int, upto: str, limit: int) -> int:
        """Trims outcomes up to `upto`, and exactly their `done` from `open`; answers how many it trimmed."""
        reply = await self._run(
            _FORGET, (keys.pace, keys.open, keys.outcomes(generation)), generation, upto, limit
        )
        return cast("int", reply)

    async def pause(self, keys: PartnerKeys, *, generation: int, paused: bool) -> None:
        """Stops or resumes taking at once; what is in flight goes on."""
        await self._run(_PAUSE, (keys.pace,), generation, int(paused))

    async def postpone(self, keys: PartnerKeys, *, generation: int, by: timedelta) -> None:
        """Moves the partner's next slot away by this much, for a send that left too late for its own."""
        await self._run(_POSTPONE, (keys.pace,), generation, by // timedelta(microseconds=1))

    async def configure(
        self,
        keys: PartnerKeys,
        *,
        generation: int,
        interval_us: int,
        guard_us: int,
        max_in_flight: int,
        floor_percent: int,
        breaker: Breaker = NO_BREAKER,
    ) -> None:
        """Sets rate and bounds; the next take goes by them."""
        await self._run(
            _CONFIGURE,
            (keys.pace,),
            generation,
            interval_us,
            guard_us,
            max_in_flight,
            floor_percent,
            *_breaker(breaker),
        )

    async def fence(self, keys: PartnerKeys, *, generation: int, guard_us: int) -> int | None:
        """Closes under a new generation and answers the one before (None: there was no `pace`).

        Nobody sends for 1 s + J from now. Raises `StaleGeneration` rather than lower the generation or close
        one that is open under this very number. Lets take and settle into this server, see `let_in`.
        """
        reply = await self._run(_FENCE, (keys.pace,), generation, guard_us)
        with reached():
            for script in _LET_IN:
                await self._call("SCRIPT LOAD", script.text)
        return cast("int | None", reply)

    async def let_in(self) -> bool:
        """Whether take and settle may run on this server: whether somebody fenced a partner since it was started.

        A server that comes back may have lost its last second, and looks whole: what was sent then would be handed
        out again as fresh. Scripts are not kept over a restart, so take and settle answer `StaleGeneration` there
        until recovery, which fences, has put them in.
        """
        with reached():
            known = cast("list[int]", await self._call("SCRIPT EXISTS", *(script.sha for script in _LET_IN)))
        return all(known)

    async def unfence(
        self,
        keys: PartnerKeys,
        *,
        generation: int,
        interval_us: int,
        guard_us: int,
        max_in_flight: int,
        floor_percent: int,
        paused: bool,
        breaker: Breaker = NO_BREAKER,
    ) -> None:
        """Opens; lanes and delays were dropped, so all counters begin at zero. A breaker that is open stays open."""
        await self._run(
            _UNFENCE,
            (keys.pace,),
            generation,
            interval_us,
            guard_us,
            max_in_flight,
            floor_percent,
            int(paused),
            *_breaker(breaker),
        )


def _beside(spared: Spared, outcomes: list[bytes]) -> tuple[str | int, ...]:
    """As settle.lua takes it; its outcome goes behind the others, which begin at its ARGV[4]."""
    outcomes.append(spared.outcome)
    return spared.state, spared.attempts, spared.unknowns, spared.due_ms, len(outcomes) + 3


def _breaker(breaker: Breaker) -> tuple[int, ...]:
    """As configure.lua and unfence.lua take it."""
    waits = (breaker.probe, breaker.probe_most, breaker.probe_lasts, breaker.pause_most)
    return (breaker.failures, *(wait // timedelta(microseconds=1) for wait in waits))


class Wire:
    """Asks Redis several things in one round trip, over connections that it keeps between two questions.

    A pool looks at a connection whenever it gives it out, and redis-py's pipeline packs in Python and looks at each
    answer several times: together three times what the intake's question itself costs.
    """

    __slots__ = ("_idle", "_pool", "_turns")

    def __init__(self, redis: Redis, *, connections: int = 4) -> None:
        """`connections` must be fewer than the client's: those that are kept do not go back to its pool."""
        self._pool = redis.connection_pool
        self._idle: list[AbstractConnection] = []
        self._turns = asyncio.Semaphore(connections)

    async def ask(self, calls: Sequence[tuple[str | int | bytes, ...]]) -> list[object]:
        """What each command answers, its own error in place of an answer; all of them within 5 s.

        Raises redis-py's errors and `TimeoutError`. A connection that fails is closed, and the next question takes
        another one: an answer that is still to come would be taken for the one to that.
        """
        answers: list[object] = []
        async with asyncio.timeout(_WITHIN_S), self._turns:
            connection = self._idle.pop() if self._idle else await self._fresh()
            try:
                # hiredis' stub means tuples of one element.
                await connection.send_packed_command(
                    [pack_command(call) for call in calls],  # type: ignore[arg-type]
                    check_health=False,
                )
                for _ in calls:
                    try:
                        answers.append(await connection.read_response())
                    except ResponseError as error:
                        answers.append(error)
            except BaseException:
                await connection.disconnect(nowait=True)
                await self._pool.release(connection)
                raise
            self._idle.append(connection)
        return answers

    async def close(self) -> None:
        """Give all connections back to the pool, which closes them."""
        while self._idle:
            await self._pool.release(self._idle.pop())

    async def _fresh(self) -> AbstractConnection:
        connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call] # redis-py's
        return connection

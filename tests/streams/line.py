"""One partner on a real server, as the tests of the scripts want it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from streams.delivery import State
from streams.gauges import Gauge, gauge, now_us
from streams.keys import PartnerKeys
from streams.moves import Entry, Fed, Feed, Place, Refused, Settled, Settlement, Take
from streams.transit import Transit

HORIZON = timedelta(milliseconds=50)
FAR = timedelta(seconds=2)


@dataclass(slots=True)
class Line:
    """A partner that is open at a million sends a second, and short words for what tests do with it."""

    transit: Transit
    keys: PartnerKeys
    generation: int = 1
    fed: dict[str, int] = field(default_factory=dict)

    async def open(
        self,
        *,
        interval_us: int = 1,
        max_in_flight: int = 1_000,
        floor_percent: int = 20,
        paused: bool = False,
    ) -> None:
        """Fence and unfence as recovery does, then let sends begin at once."""
        scripts = self.transit.scripts
        await scripts.fence(self.keys, generation=self.generation, guard_us=15_000)
        await scripts.unfence(
            self.keys,
            generation=self.generation,
            interval_us=interval_us,
            guard_us=15_000,
            max_in_flight=max_in_flight,
            floor_percent=floor_percent,
            paused=paused,
        )
        await self.set(tat=0)

    async def open_again(self, **bounds: int) -> None:
        """The next generation, with other bounds."""
        self.generation += 1
        await self.open(**bounds)

    async def set(self, **fields: int | str) -> None:
        """Put fields of `pace` where a test wants them."""
        for name, value in fields.items():
            await self.transit.redis.hset(self.keys.pace, name, str(value))

    async def feed_batch(self, count: int, *, batch: int = 7) -> list[str]:
        """Feed the next rows of a batch's own lane."""
        lane = f"batch:{batch}"
        first = self.fed.get(lane, 0) + 1
        rows = [
            Feed(entry=f"1-{row}", delivery=f"job:{batch}-{row}", envelope=f"envelope {batch}-{row}".encode())
            for row in range(first, first + count)
        ]
        result = await self.feed(lane, rows, expect_last=f"1-{first - 1}" if first > 1 else "0-0")
        assert result == Fed(count, 0)
        self.fed[lane] = first + count - 1
        return [row.delivery for row in rows]

    async def feed_live(self, *deliveries: str, lane: str = "live") -> Fed | Refused:
        """Feed into a lane whose ids Redis makes."""
        rows = [Feed(entry=None, delivery=name, envelope=f"envelope {name}".encode()) for name in deliveries]
        return await self.feed(lane, rows, expect_last="")

    async def feed(
        self, lane: str, rows: list[Feed], *, expect_last: str, read_at_us: int | None = None
    ) -> Fed | Refused:
        """Feed as the feeder does, by default with a reading of just now."""
        read = await now_us(self.transit.redis) if read_at_us is None else read_at_us
        return await self.transit.scripts.feed(
            self.keys,
            generation=self.generation,
            lane=lane,
            expect_last=expect_last,
            read_at_us=read,
            rows=rows,
        )

    async def take(
        self,
        limit: int = 100,
        *,
        worker: str = "w1",
        horizon: timedelta = HORIZON,
        held: tuple[Place, ...] = (),
    ) -> Take:
        """Take as a worker does."""
        return await self.transit.scripts.take(
            self.keys, generation=self.generation, worker=worker, limit=limit, horizon=horizon, held=held
        )

    async def entries(self, limit: int = 100, *, worker: str = "w1") -> list[Entry]:
        """The fresh entries of a take."""
        return [
            slot.entry for slot in (await self.take(limit, worker=worker)).slots if slot.entry is not None
        ]

    def ended(
        self, entry: Entry, state: State, *, delay_s: int = 60, due_ms: int = 0, generation: int | None = None
    ) -> Settlement:
        """How the one attempt of this entry ended."""
        retrying = state is State.RETRYING
        return Settlement(
            place=entry.place,
            delivery=entry.delivery,
            attempt_id=entry.place.attempt_id("AB", self.generation if generation is None else generation),
            state=state,
            attempts=entry.attempts + 1,
            unknowns=entry.unknowns,
            possible_duplicate=True,
            outcome=f"{state} {entry.delivery}".encode(),
            delay_s=delay_s if retrying else None,
            due_ms=due_ms if retrying else None,
        )

    async def settle(self, *settlements: Settlement) -> Settled:
        """Settle as a worker does."""
        return await self.transit.scripts.settle(
            self.keys, generation=self.generation, settlements=settlements
        )

    async def gauge(self) -> Gauge:
        """Look at all of it."""
        return await gauge(self.transit, self.keys)

    async def where(self, delivery: str) -> str | None:
        """What `open` says."""
        found: bytes | None = await self.transit.redis.hget(self.keys.open, delivery)
        return None if found is None else found.decode()

    async def outcomes(self) -> list[dict[bytes, bytes]]:
        """The outcome stream's fields, oldest first."""
        entries = await self.transit.redis.xrange(self.keys.outcomes(self.generation))
        return [fields for _, fields in entries]

    async def snapshot(self) -> dict[str, bytes]:
        """Everything below the partner's keys, serialised, to show that nothing was changed."""
        redis = self.transit.redis
        keys = sorted([key async for key in redis.scan_iter(match=self.keys.every, count=1000)])
        return {key.decode(): await redis.dump(key) for key in keys}

    async def held_by_streams(self) -> dict[str, str]:
        """Each delivery's place as the streams themselves have it. Fails where one is in two places."""
        redis = self.transit.redis
        lanes = [name.decode() for name in await redis.zrange(self.keys.lanes, 0, -1)]
        delays = [f"delay:{seconds.decode()}" for seconds in await redis.zrange(self.keys.delays, 0, -1)]
        found: dict[str, str] = {}
        for place in lanes + delays:
            for entry, fields in await redis.xrange(self.keys.lane(place)):
                delivery = fields[b"d"].decode()
                assert delivery not in found
                found[delivery] = f"{place}/{entry.decode()}"
        return found

    async def pending(self) -> int:
        """How many entries the groups hold in somebody's hand."""
        lanes = await self.transit.redis.zrange(self.keys.lanes, 0, -1)
        total = 0
        for name in lanes:
            summary = await self.transit.redis.xpending(self.keys.lane(name.decode()), "senders")
            total += summary["pending"]
        return total

    async def assert_whole(self) -> None:
        """Counters are what the streams hold, and `open` says where each delivery is."""
        streams = await self.held_by_streams()
        opened = await self.transit.redis.hgetall(self.keys.open)
        places = {
            delivery.decode(): where.decode()
            for delivery, where in opened.items()
            if not where.startswith(b"done:")
        }
        assert places == streams
        now = await self.gauge()
        assert now.batch + now.live == len(streams)
        assert now.pending == await self.pending()
        assert now.outcomes == now.unrecorded
        heads = {delay.seconds: delay.head_due_ms for delay in now.delays}
        for seconds, due in heads.items():
            head = await self.transit.redis.xrange(self.keys.delay(seconds), count=1)
            assert int(head[0][1][b"t"]) == due

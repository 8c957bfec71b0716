"""Who is alive. A lease is renewed by a heartbeat; once gone it stays gone, its entries are taken over."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from redis.exceptions import ResponseError

from streams.connection import reached
from streams.errors import TransitLost
from streams.keys import GROUP, PartnerKeys
from streams.lanes import names
from streams.moves import Entry
from streams.transit import Transit

LEASE = timedelta(seconds=15)
_LEASE_MS = LEASE // timedelta(milliseconds=1)


async def acquire(transit: Transit, worker: str) -> bool:
    """Begin under an id that nobody ever used; False when somebody has it."""
    return await transit.scripts.lease(transit.keys.worker(worker), lasts=LEASE)


async def renew(transit: Transit, worker: str) -> bool:
    """Fifteen seconds more. False: it has expired; drop what is unsent and begin under a new id."""
    with reached():
        # SET would be refused at the memory limit, and a full Redis must drain.
        return bool(await transit.redis.pexpire(transit.keys.worker(worker), _LEASE_MS))


async def end(transit: Transit, worker: str) -> None:
    """Give the lease up, having nothing in hand."""
    with reached():
        await transit.redis.delete(transit.keys.worker(worker))


async def alive(transit: Transit, workers: Collection[str]) -> frozenset[str]:
    """Those of `workers` whose lease is there."""
    asked = tuple(workers)
    if not asked:
        return frozenset()
    with reached():
        pipeline = transit.redis.pipeline(transaction=False)
        for worker in asked:
            pipeline.exists(transit.keys.worker(worker))
        replies: list[int] = await pipeline.execute()
    return frozenset(worker for worker, there in zip(asked, replies, strict=True) if there)


_REAPER = ".reaper"


def reaper_of(worker: str) -> str:
    """The consumer under which a worker takes over: not its own, or it would adopt and send what was sent."""
    return worker + _REAPER


def is_reaper(consumer: str) -> bool:
    """Whether what this consumer has in hand is being taken over from a dead worker."""
    return consumer.endswith(_REAPER)


async def claim_from_dead(
    transit: Transit,
    keys: PartnerKeys,
    *,
    generation: int,
    reaper: str,
    min_idle: timedelta,
    limit: int,
) -> tuple[Entry, ...]:
    """Takes over entries whose consumer has no lease and which were idle for `min_idle` (above the timeout).

    `reaper` is the worker that asks; it settles each as Unknown ("worker died") and sends none. What it fails
    to settle goes idle again and is taken over anew. Consumers without lease and entries are removed.
    """
    lanes = await names(transit, keys)
    with reached():
        pipeline = transit.redis.pipeline(transaction=False)
        for lane in lanes:
            pipeline.xinfo_consumers(keys.lane(lane), GROUP)
        replies = await pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise TransitLost(str(reply)) from reply
    consumers = [
        (lane, bytes(consumer["name"]).decode())
        for lane, found in zip(lanes, replies, strict=True)
        for consumer in found
    ]
    # First what an earlier step of this reaper left, or it would be found again right after being taken over.
    consumers.sort(key=lambda found: found[1] != reaper_of(reaper))
    living = await alive(transit, {name for _, name in consumers})
    taken: list[Entry] = []
    for lane, name in consumers:
        if name in living or len(taken) >= limit:
            continue
        taken += await transit.scripts.reap(
            keys,
            generation=generation,
            lane=lane,
            dead=name,
            reaper=reaper_of(reaper),
            min_idle=min_idle,
            limit=limit - len(taken),
        )
    return tuple(taken)

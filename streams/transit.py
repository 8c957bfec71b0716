"""The connection to Redis. The client retries nothing: who calls decides what a lost reply means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streams.keys import Keys
from streams.scripts import Scripts, Wire

SOCKET_TIMEOUT_S = 5.0


def connect(url: str, *, connections: int = 8, limited: bool = True) -> Redis:
    """A client that answers in bytes, never retries, and waits 5 s for a free connection.

    `limited`: it waits 5 s for an answer, too; else whoever calls says how long.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S if limited else None,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
    )
    return Redis.from_pool(pool)


@dataclass(frozen=True, slots=True)
class Transit:
    """Redis as Madeira uses it: the client, the scripts and how keys are spelled.

    `waiting` has connections of its own, on which a call takes as long as its caller lets it: for reads that block,
    and for `wire`, the intake's, to which a limit inside redis-py would cost a task for each call.
    """

    redis: Redis
    scripts: Scripts
    keys: Keys
    waiting: Redis
    wire: Wire

    @classmethod
    def open(cls, url: str, prefix: str = "madeira", *, connections: int = 8) -> Self:
        """Connects at the first command, not here."""
        redis = connect(url, connections=connections)
        waiting = connect(url, limited=False)
        return cls(redis, Scripts(redis), Keys(prefix), waiting, Wire(waiting))

    async def close(self) -> None:
        """Close every connection of the pool."""
        await self.redis.aclose()
        await self.wire.close()
        await self.waiting.aclose()

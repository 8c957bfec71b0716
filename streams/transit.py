"""The connection to Redis. The client retries nothing: who calls decides what a lost reply means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streams.keys import Keys
from streams.scripts import Scripts

SOCKET_TIMEOUT_S = 5.0


def connect(url: str, *, connections: int = 8) -> Redis:
    """A client that answers in bytes, never retries, and waits 5 s for an answer or for a free connection.

    Not for a BLOCK: that needs a connection of its own with a longer timeout.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=SOCKET_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
    )
    return Redis.from_pool(pool)


@dataclass(frozen=True, slots=True)
class Transit:
    """Redis as Madeira uses it: the client, the scripts and how keys are spelled.

    `waiting` has connections of its own for reads that block, for 2 s at most.
    """

    redis: Redis
    scripts: Scripts
    keys: Keys
    waiting: Redis

    @classmethod
    def open(cls, url: str, prefix: str = "madeira", *, connections: int = 8) -> Self:
        """Connects at the first command, not here."""
        redis = connect(url, connections=connections)
        return cls(redis, Scripts(redis), Keys(prefix), connect(url, connections=2))

    async def close(self) -> None:
        """Close every connection of the pool."""
        await self.redis.aclose()
        await self.waiting.aclose()

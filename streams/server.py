"""What a Redis or Valkey server says of itself, as far as payments depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from streams.connection import reached
from streams.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """From INFO, and `appendfsync` from CONFIG, which is None where the server doesn't tell.

    `version` is that of Redis's commands and replies; Valkey says 7.2.4 here and its own in `product`.
    `memory_limit` is 0 for none. `aof_healthy` is False once a write to the AOF has failed.
    """

    product: str
    version: tuple[int, int, int]
    eviction: str
    memory_used: int
    memory_limit: int
    append_only: bool
    aof_healthy: bool
    fsync: str | None
    replica: bool


async def server_facts(redis: Redis) -> ServerFacts:
    """Ask the server. Raises `StoreUnavailable`, with the reason, when it does not answer or refuses to."""
    try:
        with reached():
            info = {str(name): str(value) for name, value in (await redis.info()).items()}
            fsync = await _fsync(redis)
    except RedisError as error:
        raise StoreUnavailable(f"Redis refuses: {error}") from error
    version = info.get("redis_version", "0.0.0")
    valkey = info.get("valkey_version")
    return ServerFacts(
        product=f"Valkey {valkey}" if valkey else f"Redis {version}",
        version=_version(version),
        eviction=info.get("maxmemory_policy", ""),
        memory_used=int(info.get("used_memory", 0)),
        memory_limit=int(info.get("maxmemory", 0)),
        append_only=info.get("aof_enabled") == "1",
        aof_healthy=info.get("aof_last_write_status", "ok") == "ok",
        fsync=fsync,
        replica=info.get("role", "master") != "master",
    )


async def _fsync(redis: Redis) -> str | None:
    try:
        answer: object = await redis.config_get("appendfsync")
    except ResponseError:
        # Hosted servers often forbid CONFIG.
        return None
    # Text or bytes, depending on client and protocol; its types know only one of them.
    values = [*answer.values()] if isinstance(answer, dict) else []
    if not values:
        return None
    return values[0].decode() if isinstance(values[0], bytes) else str(values[0])


def _version(text: str) -> tuple[int, int, int]:
    parts = [int(part) if part.isdecimal() else 0 for part in [*text.split("."), "0", "0", "0"][:3]]
    return parts[0], parts[1], parts[2]

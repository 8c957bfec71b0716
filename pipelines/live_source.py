"""A source of live events as jobs.toml describes it: who may post, under which keys, how much, how durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class Durability(StrEnum):
    """What a 202 means: the event is committed in PostgreSQL, or Redis has it."""

    POSTGRES = "postgres"
    REDIS = "redis"


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One sender. `keys` are the secrets themselves, the newest first, and never show in a repr.

    `rate` is events a second, over all processes of one `serve`; `max_body` bytes of one event; `remember` how
    long Redis knows an accepted id (PostgreSQL knows it for ever).
    """

    name: str
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    tenant: str = "default"
    durability: Durability = Durability.POSTGRES
    rate: int = 1_000
    max_body: int = 262_144
    remember: timedelta = timedelta(hours=6)

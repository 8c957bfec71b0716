"""A partner as jobs.toml describes it: where it is, how fast it may be sent to, how its answers are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from streams.moves import Breaker

DEFAULT_LEVELS = tuple(timedelta(seconds=s) for s in (60, 120, 240, 480, 960, 1800))


class SignatureScheme(StrEnum):
    """How a request is signed."""

    MADEIRA = "madeira"
    STANDARD_WEBHOOKS = "standard-webhooks"


@dataclass(frozen=True, slots=True)
class Partner:
    """One receiver. `qps` is a promise about any second; `levels` are the waits between attempts.

    `signing_keys` are the secrets themselves, read from the environment; they never show in a repr,
    nor do `headers`, which may carry tokens.
    """

    name: str
    endpoint: str
    qps: int
    tenant: str = "default"
    signing_keys: tuple[bytes, ...] = field(default=(), repr=False)
    signature: SignatureScheme = SignatureScheme.MADEIRA
    success: str | None = None
    retry_codes: frozenset[str] = frozenset()
    already_accepted: frozenset[str] = frozenset()
    retry_when: str | None = None
    """JMESPath over `{status, headers, body}` of any answer; where it is true, the answer is a Retry."""
    retry_after_max: timedelta = timedelta(hours=1)
    breaker_failures: int = 20
    """Failures in a row that open the breaker; 0: it never opens."""
    breaker_probe: timedelta = timedelta(seconds=5)
    breaker_probe_max: timedelta = timedelta(seconds=60)
    timeout: timedelta = timedelta(seconds=20)
    guard: timedelta = timedelta(milliseconds=15)
    lateness: timedelta = timedelta(milliseconds=8)
    levels: tuple[timedelta, ...] = DEFAULT_LEVELS
    max_attempts: int = 12
    max_age: timedelta = timedelta(hours=72)
    unknown_retries: int = 3
    max_in_flight: int = 100
    batch_floor_percent: int = 20
    allow_private: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Hosts (`host` or `host:port`) beside the endpoint's own that an event's `target_uri` may name."""
    tags: tuple[tuple[str, str], ...] = ()
    """Select the workers that send to it (`madeira work --tags`)."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def interval_us(self) -> int:
        """Microseconds between two sends: `floor((1 s + J) / Q) + 1`, so no second holds more than `qps`."""
        guard_us = self.guard // timedelta(microseconds=1)
        return (1_000_000 + guard_us) // self.qps + 1

    @property
    def breaker(self) -> Breaker:
        """The breaker as Redis keeps it. A probe is given up when no request can be under way any more."""
        return Breaker(
            failures=self.breaker_failures,
            probe=self.breaker_probe,
            probe_most=self.breaker_probe_max,
            probe_lasts=self.timeout + self.lateness + timedelta(seconds=5),
            pause_most=max(self.retry_after_max, timedelta(seconds=1)),
        )

"""`isolation`: what a partner that times out on every request costs the live events of another one."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from tests.bench.live import LIVE_PER_SECOND, PARTNER, QPS, beside_batch, p99, waited_ms
from tests.bench.site import Rate, Serving, Site, wait_until

_SILENT = Rate("S", QPS, max_in_flight=100, silent=True)


@dataclass(frozen=True, slots=True)
class Isolation:
    """The first partner's live p99 (acceptance to first byte) of each run, and their medians."""

    runs: int
    seconds_each: int
    alone_p99_ms: float
    beside_p99_ms: float
    limit_ms: float
    alone_p99s_ms: tuple[float, ...]
    beside_p99s_ms: tuple[float, ...]
    timed_out: int


def measure(site: Site, *, runs: int = 5, seconds: int = 10) -> Isolation:
    """Runs in turn without and with the silent partner; the first one's batch goes on through all of them.

    The silent one has no breaker, which would spare it and us, and gets a hundred events a second, each of which
    holds a connection for its whole timeout: it is always at the most requests that it may have without an answer.
    """
    alone, beside = [], []
    with beside_batch(site, rows=QPS * runs * (seconds + 5) * 2, others=(_SILENT,)) as serving:
        for n in range(runs):
            alone.append(_run(site, serving, f"alone{n}", seconds))
            with ExitStack() as stack:
                stack.enter_context(
                    site.sending(
                        serving.port, "--source", "postgres", "--count", (seconds + 1) * 2 * LIVE_PER_SECOND,
                        "--per-second", 2 * LIVE_PER_SECOND, "--connections", 20, "--prefix", f"silent{n}",
                        "--routing-key", _SILENT.name,
                    )
                )  # fmt: skip
                wait_until(lambda n=n: _ended(site, f"silent{n}") > 0, seconds=15, every=0.2)
                beside.append(_run(site, serving, f"beside{n}", seconds))
            wait_until(lambda: _waiting(site) == 0, seconds=60, every=0.5)
        timed_out = _ended(site, "silent")
    quiet = statistics.median(alone)
    return Isolation(
        runs=runs,
        seconds_each=seconds,
        alone_p99_ms=quiet,
        beside_p99_ms=statistics.median(beside),
        limit_ms=1.2 * quiet + 20,
        alone_p99s_ms=tuple(alone),
        beside_p99s_ms=tuple(beside),
        timed_out=timed_out,
    )


def _run(site: Site, serving: Serving, prefix: str, seconds: int) -> float:
    site.send(
        serving.port, "--source", "postgres", "--count", LIVE_PER_SECOND * seconds,
        "--per-second", LIVE_PER_SECOND, "--connections", 20, "--prefix", prefix, "--routing-key", PARTNER,
    )  # fmt: skip
    return p99(waited_ms(site, prefix, count=LIVE_PER_SECOND * seconds))


def _ended(site: Site, prefix: str) -> int:
    """Sends to the silent partner that ended, all of them by its timeout."""
    return _count(
        site,
        "SELECT count(*) FROM delivery_log WHERE partner = %s AND event_id LIKE %s",
        (_SILENT.name, f"{prefix}%"),
    )


def _waiting(site: Site) -> int:
    return _count(
        site,
        "SELECT count(*) FROM delivery WHERE partner = %s AND status IN ('pending', 'retrying')",
        (_SILENT.name,),
    )


def _count(site: Site, query: str, values: tuple[str, ...]) -> int:
    with psycopg.connect(site.database_url, autocommit=True) as record:
        row = record.execute(query, values).fetchone()
    return 0 if row is None else row[0]

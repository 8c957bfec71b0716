"""`live`: a batch that outlasts the window and live events by HTTP share one partner's rate."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tests.bench.receiver import most
from tests.bench.site import BUSINESS_DATE, Rate, Serving, Site, end, wait_until

PARTNER = "P"
QPS = 200
LIVE_PER_SECOND = 50


@dataclass(frozen=True, slots=True)
class Live:
    """One window. Milliseconds from a live event's acceptance to its first byte; shares are of the agreed rate."""

    qps: int
    seconds: int
    live: int
    live_p50_ms: float
    live_p99_ms: float
    live_max_ms: float
    post_p99_ms: float
    used: float
    batch_share: float
    max_per_second: int
    receiver_max_per_second: int
    receiver_worst_stall_ms: float


def measure(site: Site, *, seconds: int = 60) -> Live:
    """Post steadily for `seconds` while the batch is sent, then read the journal."""
    with beside_batch(site, rows=QPS * seconds * 3 // 2, others=()) as serving:
        sent = site.send(
            serving.port, "--source", "postgres", "--count", LIVE_PER_SECOND * seconds,
            "--per-second", LIVE_PER_SECOND, "--connections", 20, "--prefix", "live", "--routing-key", PARTNER,
        )  # fmt: skip
        waits = waited_ms(site, "live", count=LIVE_PER_SECOND * seconds)
        report = site.ask("/report")
        at, batch = _stamps(site)
    return Live(
        qps=QPS,
        seconds=seconds,
        live=len(waits),
        live_p50_ms=statistics.median(waits),
        live_p99_ms=p99(waits),
        live_max_ms=waits[-1],
        post_p99_ms=sent.p99_ms,
        used=(len(at) - 1) / (at[-1] - at[0]) / QPS,
        batch_share=batch / len(at),
        max_per_second=most(at),
        receiver_max_per_second=report["paths"][f"/{PARTNER}"]["max_per_second"],
        receiver_worst_stall_ms=report["worst_stall_ms"],
    )


@contextmanager
def beside_batch(site: Site, *, rows: int, others: tuple[Rate, ...]) -> Iterator[Serving]:
    """Servers and workers with a batch of so many rows under way to `PARTNER`."""
    site.write_jobs([Rate(PARTNER, QPS, max_in_flight=QPS), *others])
    site.fill({PARTNER: rows})
    site.clear()
    with site.serve() as serving:
        site.run("batch", "run", "bench", "--date", BUSINESS_DATE, "--json")
        work = site.madeira("work", "--processes", "2")
        try:
            # Two seconds' worth: both workers are there, and the pace runs evenly.
            wait_until(
                lambda: site.ask("/report")["paths"].get(f"/{PARTNER}", {}).get("posts", 0) > 2 * QPS,
                seconds=60,
                every=0.2,
            )
            yield serving
        finally:
            end(work)


def waited_ms(site: Site, prefix: str, *, count: int) -> list[float]:
    """From acceptance to first byte for each live event of the prefix, ascending, once all are in the journal."""
    with psycopg.connect(site.database_url, autocommit=True) as record:
        waits: list[float] = []

        def all_there() -> bool:
            waits[:] = [
                row[0]
                for row in record.execute(
                    "SELECT extract(epoch FROM log.sent_at - event.created_at)::float8 * 1000"
                    " FROM event JOIN delivery_log log USING (source, event_id)"
                    " WHERE event.event_id LIKE %s AND log.number = 1 ORDER BY 1",
                    (f"{prefix}-%",),
                )
            ]
            return len(waits) >= count

        wait_until(all_there, seconds=30, every=0.5)
    return waits


def p99(ascending: list[float]) -> float:
    """The value that 99 of 100 do not exceed."""
    return ascending[len(ascending) * 99 // 100]


def _stamps(site: Site) -> tuple[array[float], int]:
    """Every send between the first and the last live one, as Unix seconds, and how many of them the batch's were."""
    with psycopg.connect(site.database_url, autocommit=True) as record:
        window = record.execute(
            "SELECT min(sent_at), max(sent_at) FROM delivery_log WHERE source = 'postgres'"
        ).fetchone()
        if window is None:
            raise RuntimeError("no live event was sent")

        def past_window() -> bool:
            # Outcomes are recorded nearly in order: a second later nothing of the window is missing.
            row = record.execute(
                "SELECT max(sent_at) - %s > interval '1 second' FROM delivery_log", (window[1],)
            )
            return bool((row.fetchone() or [False])[0])

        wait_until(past_window, seconds=30, every=0.2)
        rows = record.execute(
            "SELECT extract(epoch FROM sent_at)::float8, source <> 'postgres' FROM delivery_log"
            " WHERE sent_at BETWEEN %s AND %s ORDER BY 1",
            window,
        ).fetchall()
    return array("d", (row[0] for row in rows)), sum(row[1] for row in rows)

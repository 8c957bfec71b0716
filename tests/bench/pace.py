"""`pace`: four worker processes at one agreed rate; the most sends in any second, and the share used."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import psycopg

from tests.bench.receiver import most
from tests.bench.site import BUSINESS_DATE, Rate, Site, end, wait_until

_SECONDS = {2: 20, 50: 20, 300: 20, 1000: 20}


@dataclass(frozen=True, slots=True)
class Pace:
    """One agreed rate. `used` is the share of it between the first and the last send, by the workers' stamps."""

    qps: int
    workers: int
    sends: int
    worker_max_per_second: int
    worker_over_qps: float
    receiver_max_per_second: int
    receiver_over_qps: float
    used: float
    receiver_worst_stall_ms: float


def measure(site: Site, qps: int, *, workers: int = 4) -> Pace:
    """Keep one partner busy for some twenty seconds."""
    sends = qps * _SECONDS[qps]
    name = f"Q{qps}"
    site.write_jobs([Rate(name, qps, max_in_flight=max(20, qps))])
    site.fill({name: sends})
    site.clear()
    site.run("batch", "run", "bench", "--date", BUSINESS_DATE, "--json")
    work = site.madeira("work", "--processes", str(workers))
    try:
        with psycopg.connect(site.database_url, autocommit=True) as record:

            def finished() -> bool:
                row = record.execute("SELECT max(counted) FROM outcome_offset").fetchone()
                return row is not None and (row[0] or 0) >= sends

            wait_until(finished, seconds=_SECONDS[qps] * 3 + 30, every=0.2)
            rows = record.execute(
                "SELECT extract(epoch FROM sent_at)::float8 FROM delivery_log WHERE sent_at IS NOT NULL ORDER BY 1"
            ).fetchall()
        report = site.ask("/report")
    finally:
        end(work)
    at = array("d", (row[0] for row in rows))
    arrivals = report["paths"][f"/{name}"]["max_per_second"]
    return Pace(
        qps=qps,
        workers=workers,
        sends=len(at),
        worker_max_per_second=most(at),
        worker_over_qps=most(at) / qps,
        receiver_max_per_second=arrivals,
        receiver_over_qps=arrivals / qps,
        used=(len(at) - 1) / (at[-1] - at[0]) / qps,
        receiver_worst_stall_ms=report["worst_stall_ms"],
    )

"""`reconcile_seconds`: a day of many items, against a plain COPY of the same items."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

from tests.bench.load import timed
from tests.bench.site import BUSINESS_DATE, Rate, Site

_ITEMS = (
    "COPY (SELECT * FROM event JOIN delivery ON delivery.event = event.id"
    " ORDER BY delivery.batch_id, delivery.partner, delivery.row_number) TO STDOUT (FORMAT csv)"
)


@dataclass(frozen=True, slots=True)
class Reports:
    """One run of `madeira reconcile`; `ratio` is its time over the plain COPY's."""

    items: int
    seconds: float
    copy_seconds: float
    ratio: float
    peak_rss_mib: float


def measure(site: Site, *, items: int) -> Reports:
    """Uses the batch of the load bench, or loads one; every item is delivered, one in a thousand is not."""
    site.write_jobs([Rate(f"P{n}", 500) for n in range(4)])
    with psycopg.connect(site.database_url, autocommit=True) as record:
        row = record.execute("SELECT count(*) FROM delivery").fetchone()
        if row is None or row[0] != items:
            site.fill({f"P{n}": items // 4 for n in range(4)})
            site.clear()
            site.run("batch", "run", "bench", "--date", BUSINESS_DATE, "--json")
        record.execute(
            "UPDATE delivery SET"
            " status = CASE WHEN event % 1000 = 0 THEN 'dead' ELSE 'succeeded' END::delivery_status,"
            " attempts = 1, last_status_code = CASE WHEN event % 1000 = 0 THEN 400 ELSE 200 END,"
            " cause = CASE WHEN event % 1000 = 0 THEN 'refused' END, last_error = '', due_at = NULL"
        )
        record.execute("VACUUM ANALYZE delivery")
        started = time.monotonic()
        with record.cursor() as cursor, cursor.copy(_ITEMS) as copied:
            for _ in copied:
                pass
        copy_seconds = time.monotonic() - started
    out = site.folder / "reports"
    seconds, peak = timed(site, "reconcile", "--date", BUSINESS_DATE, "--out", str(out), accept=(0, 1))
    return Reports(items, seconds, copy_seconds, seconds / copy_seconds, peak)

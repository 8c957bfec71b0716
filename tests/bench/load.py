"""`load_rows_per_s` against a plain COPY out and in of the same rows, and the feed's hold on Redis's memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import psycopg

from tests.bench.site import BUSINESS_DATE, ROOT, Rate, Site, end, wait_until

_PARTNERS = 4
_HIGH_WATER = 50_000


@dataclass(frozen=True, slots=True)
class Load:
    """One batch of many rows. `ratio` is our rows per second over the plain COPY's."""

    rows: int
    seconds: float
    rows_per_second: float
    copy_seconds: float
    copy_rows_per_second: float
    ratio: float
    loader_peak_rss_mib: float
    redis_peak_mib: float
    redis_most_entries: int


def measure(site: Site, *, rows: int = 1_000_000) -> Load:
    """Load once, then feed until the high-water mark holds."""
    rates = [Rate(f"P{n}", 500) for n in range(_PARTNERS)]
    site.write_jobs(rates)
    site.fill({rate.name: rows // _PARTNERS for rate in rates})
    site.clear()
    copied = _plain_copy(site)
    seconds, peak = timed(site, "batch", "run", "bench", "--date", BUSINESS_DATE, "--json")
    memory, entries = _feed(site)
    return Load(
        rows=rows,
        seconds=seconds,
        rows_per_second=rows / seconds,
        copy_seconds=copied,
        copy_rows_per_second=rows / copied,
        ratio=copied / seconds,
        loader_peak_rss_mib=peak,
        redis_peak_mib=memory,
        redis_most_entries=entries,
    )


def timed(site: Site, *arguments: str, accept: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Run a Madeira command as a process of its own: seconds from start to end, peak resident MiB."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "madeira", *arguments], env=site.environ, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in accept:
        raise RuntimeError(f"madeira {' '.join(arguments)} ended with {process.returncode}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


def _plain_copy(site: Site) -> float:
    """Seconds to COPY the same rows out of the source and into a table without indexes, by the same driver."""
    with (
        psycopg.connect(site.source_url) as source,
        psycopg.connect(site.database_url) as record,
        source.cursor() as out,
        record.cursor() as into,
    ):
        record.execute("DROP TABLE IF EXISTS copied")
        record.execute(
            "CREATE TABLE copied (order_id bigint, partner text, account_to text, amount numeric(14, 2),"
            " symbol text, note text)"
        )
        record.commit()
        started = time.monotonic()
        with out.copy("COPY orders TO STDOUT") as read, into.copy("COPY copied FROM STDIN") as write:
            for data in read:
                write.write(data)
        record.commit()
        return time.monotonic() - started


def _feed(site: Site, *, at_most_s: float = 90.0) -> tuple[float, int]:
    """The most memory and entries that Redis held until the feed had rested at its mark for some seconds."""
    memory, entries = 0.0, 0
    work = site.madeira("work")
    try:
        wait_until(lambda: site.redis_command("EXISTS", "madeira:{default.P0}:batch:1"), seconds=60)
        grown = time.monotonic()
        deadline = grown + at_most_s
        while time.monotonic() < min(deadline, grown + 5.0):
            memory = max(memory, site.redis_command("INFO", "memory")["used_memory"] / 2**20)
            lanes = [
                site.redis_command("XLEN", f"madeira:{{default.P{n}}}:batch:1") for n in range(_PARTNERS)
            ]
            if max(lanes) > entries:
                entries, grown = max(lanes), time.monotonic()
            time.sleep(0.1)
    finally:
        end(work)
    return memory, entries

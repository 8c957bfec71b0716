"""`dispatch_vs_bare`: one worker process, everything settled and journalled, against a bare aiohttp client."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

import psutil
import psycopg

from tests.bench.site import BUSINESS_DATE, ROOT, Rate, Site, cpu_s, end, rss_mib, wait_until

_BODY_BYTES = 500
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Medians over the rounds; each round is one of ours and one of the reference's, in turn."""

    deliveries: int
    rounds: int
    per_second: float
    bare_per_second: float
    ratio: float
    ratios: tuple[float, ...]
    cpu_s_per_1000: float
    bare_cpu_s_per_1000: float
    worker_rss_mib: float
    receiver: str


def measure(site: Site, *, deliveries: int = 40_000, rounds: int = 3) -> Dispatch:
    """Run the rounds."""
    site.write_jobs([Rate("P", 100_000, 4 * _AT_ONCE)])
    site.fill({"P": deliveries}, size=_BODY_BYTES)
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(_bare(site, deliveries))
        ours.append(_worker(site, deliveries))
    ratios = tuple(one["per_second"] / other["per_second"] for one, other in zip(ours, bare, strict=True))
    return Dispatch(
        deliveries=deliveries,
        rounds=rounds,
        per_second=statistics.median(each["per_second"] for each in ours),
        bare_per_second=statistics.median(each["per_second"] for each in bare),
        ratio=statistics.median(ratios),
        ratios=ratios,
        cpu_s_per_1000=statistics.median(each["cpu_s_per_1000"] for each in ours),
        bare_cpu_s_per_1000=statistics.median(each["cpu_s_per_1000"] for each in bare),
        worker_rss_mib=max(each["rss_mib"] for each in ours),
        receiver="asyncio (uvloop), a process of its own",
    )


def _bare(site: Site, count: int) -> dict[str, float]:
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.bench.bare", f"http://127.0.0.1:{site.receiver}/P",
            str(count), str(_AT_ONCE), str(_BODY_BYTES),
        ],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _worker(site: Site, count: int) -> dict[str, float]:
    """From the first headers to the last commit of the recorder, by the record's own stamps."""
    site.clear()
    site.run("batch", "run", "bench", "--date", BUSINESS_DATE, "--json")
    worker = site.madeira("work")
    try:
        process = psutil.Process(worker.pid)
        with psycopg.connect(site.database_url, autocommit=True) as record:

            def finished() -> bool:
                row = record.execute(
                    "SELECT counted FROM outcome_offset ORDER BY counted DESC LIMIT 1"
                ).fetchone()
                return row is not None and row[0] >= count

            wait_until(lambda: record.execute("SELECT 1 FROM worker").fetchone() is not None, seconds=20)
            before = cpu_s([process])
            wait_until(finished, seconds=120, every=0.1)
            used, resident = cpu_s([process]) - before, rss_mib(process)
            row = record.execute(
                "SELECT count(*), extract(epoch FROM max(recorded_at) - min(sent_at))::float8 FROM delivery_log"
                " WHERE outcome = 'succeeded'"
            ).fetchone()
        if row is None or row[0] != count:
            raise RuntimeError(f"{row} of {count} were delivered")
        return {"per_second": count / row[1], "cpu_s_per_1000": used / count * 1000, "rss_mib": resident}
    finally:
        end(worker)

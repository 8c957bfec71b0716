"""`bulk_events_per_s`: bulk posts of one `madeira serve`, against redis-py's own pipelined XADD of the same bytes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

from tests.bench.site import DURABILITIES, ROOT, Rate, Site

_POSTS = 50
_LINES = 1_000
_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class Bulk:
    """Medians over the rounds. `ratio` is of the source with durability redis."""

    events: int
    rounds: int
    redis_per_second: float
    postgres_per_second: float
    xadd_per_second: float
    ratio: float
    ratios: tuple[float, ...]
    redis_p99_ms: float
    postgres_p99_ms: float


def measure(site: Site, *, rounds: int = 3) -> Bulk:
    """The reference and both durabilities in turn; no worker runs, as in ingest.py."""
    site.write_jobs([Rate("P", 1_000)])
    site.clear()
    events = _POSTS * _LINES
    xadd: list[float] = []
    took: dict[str, list[float]] = {name: [] for name in DURABILITIES}
    p99_ms: dict[str, list[float]] = {name: [] for name in DURABILITIES}
    with site.serve() as serving:
        for n in range(rounds):
            xadd.append(_xadd(site, events))
            for name in DURABILITIES:
                sent = site.send(
                    serving.port, "--source", name, "--count", _POSTS, "--lines", _LINES,
                    "--connections", _CONNECTIONS, "--prefix", f"{name}-{n}",
                )  # fmt: skip
                if sent.answers != {"200 accepted": events}:
                    raise RuntimeError(f"{name}: {sent.answers}")
                took[name].append(events / sent.seconds)
                p99_ms[name].append(sent.p99_ms)
                site.clear()
    ratios = tuple(one / other for one, other in zip(took["redis"], xadd, strict=True))
    return Bulk(
        events=events,
        rounds=rounds,
        redis_per_second=statistics.median(took["redis"]),
        postgres_per_second=statistics.median(took["postgres"]),
        xadd_per_second=statistics.median(xadd),
        ratio=statistics.median(ratios),
        ratios=ratios,
        redis_p99_ms=statistics.median(p99_ms["redis"]),
        postgres_p99_ms=statistics.median(p99_ms["postgres"]),
    )


def _xadd(site: Site, events: int) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bare_xadd", site.redis_url, str(events), str(_LINES)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found["per_second"]

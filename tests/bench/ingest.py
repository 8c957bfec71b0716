"""`ingest_vs_bare`: single posts of one `madeira serve`, against a handler that only checks the HMAC and answers.

No `madeira work` runs in the rounds: there are two cores, one for the server and one for the senders and the stores.
What was accepted therefore stays in the inbound shards until the round is over. One more round with a worker beside
it, which routes and sends what comes, is reported and compared with nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import psycopg

from streams.keys import Keys
from tests.bench.site import DURABILITIES, ROOT, Rate, Sent, Serving, Site, cpu_s, end, wait_until

_COUNTS = {"bare": 40_000, "redis": 30_000, "postgres": 20_000}
_CONNECTIONS = 50


@dataclass(frozen=True, slots=True)
class Ingest:
    """Medians over the rounds of one durability; each of its rounds stands beside one of the reference's."""

    durability: str
    posts: int
    rounds: int
    per_second: float
    bare_per_second: float
    ratio: float
    ratios: tuple[float, ...]
    p50_ms: float
    p99_ms: float
    bare_p50_ms: float
    bare_p99_ms: float
    cpu_s_per_1000: float
    bare_cpu_s_per_1000: float
    senders_cpu_share: float
    with_worker_per_second: float


def measure(site: Site, *, rounds: int = 3) -> list[Ingest]:
    """The reference and both durabilities in turn."""
    site.write_jobs([Rate("P", 100_000, 4 * _CONNECTIONS)])
    site.clear()
    sent: dict[str, list[Sent]] = {name: [] for name in _COUNTS}
    cpu: dict[str, list[float]] = {name: [] for name in _COUNTS}
    with _bare(site) as bare, site.serve() as serving:
        for n in range(rounds):
            for name, server in (("bare", bare), *((durability, serving) for durability in DURABILITIES)):
                before = cpu_s([server.process])
                sent[name].append(_send(site, server.port, name, f"{name}-{n}"))
                cpu[name].append((cpu_s([server.process]) - before) / _COUNTS[name] * 1000)
                if server is serving:
                    _all_kept(site, name)
                    site.clear()
        beside = _beside_worker(site, serving)
    return [_medians(durability, sent, cpu, beside[durability]) for durability in DURABILITIES]


def _medians(name: str, sent: dict[str, list[Sent]], cpu: dict[str, list[float]], beside: float) -> Ingest:
    ours, bare = sent[name], sent["bare"]
    ratios = tuple(one.per_second / other.per_second for one, other in zip(ours, bare, strict=True))
    return Ingest(
        durability=name,
        posts=_COUNTS[name],
        rounds=len(ours),
        per_second=statistics.median(each.per_second for each in ours),
        bare_per_second=statistics.median(each.per_second for each in bare),
        ratio=statistics.median(ratios),
        ratios=ratios,
        p50_ms=statistics.median(each.p50_ms for each in ours),
        p99_ms=statistics.median(each.p99_ms for each in ours),
        bare_p50_ms=statistics.median(each.p50_ms for each in bare),
        bare_p99_ms=statistics.median(each.p99_ms for each in bare),
        cpu_s_per_1000=statistics.median(cpu[name]),
        bare_cpu_s_per_1000=statistics.median(cpu["bare"]),
        senders_cpu_share=statistics.median(each.cpu_share for each in ours),
        with_worker_per_second=beside,
    )


def _send(site: Site, port: int, source: str, prefix: str) -> Sent:
    sent = site.send(
        port,
        "--source",
        source,
        "--count",
        _COUNTS[source],
        "--connections",
        _CONNECTIONS,
        "--prefix",
        prefix,
    )
    if sent.answers != {"202 accepted": _COUNTS[source]}:
        raise RuntimeError(f"{source}: {sent.answers}")
    return sent


def _all_kept(site: Site, durability: str) -> None:
    """Every event with a 202 is where its source's durability says. Raises `RuntimeError`."""
    kept = sum(site.redis_command("XLEN", shard.stream) for shard in Keys().inbound)
    if durability == "postgres":
        with psycopg.connect(site.database_url) as record:
            row = record.execute("SELECT count(*) FROM event").fetchone()
        kept = 0 if row is None else row[0]
    if kept != _COUNTS[durability]:
        raise RuntimeError(f"{durability}: {kept} of {_COUNTS[durability]} accepted events are there")


def _beside_worker(site: Site, serving: Serving) -> dict[str, float]:
    """Posts per second while a worker routes and sends."""
    found = {}
    for durability in DURABILITIES:
        site.clear()
        work = site.madeira("work")
        try:
            wait_until(lambda: site.redis_command("KEYS", "madeira:worker:*") != [], seconds=30)
            found[durability] = _send(site, serving.port, durability, f"{durability}-beside").per_second
        finally:
            end(work)
    return found


@contextmanager
def _bare(site: Site) -> Iterator[Serving]:
    port_file = site.folder / "bare_web.port"
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.bare_web", str(port_file)], cwd=ROOT)
    try:
        wait_until(port_file.exists, seconds=15)
        yield Serving(int(port_file.read_text()), psutil.Process(process.pid))
    finally:
        end(process)

"""`same_id`: two hundred senders post one event at once; one is accepted, and one delivery arrives."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from streams.keys import Keys
from tests.bench.site import DURABILITIES, Rate, Site, end, wait_until

_SENDERS = 200


@dataclass(frozen=True, slots=True)
class SameId:
    """What one durability answered, and what the partner got."""

    durability: str
    answers: dict[str, int]
    arrived: int
    exact: bool


def measure(site: Site) -> list[SameId]:
    """Both durabilities, a worker running."""
    return [_one(site, durability) for durability in DURABILITIES]


def _one(site: Site, durability: str) -> SameId:
    site.write_jobs([Rate("P", 200)])
    site.clear()
    with site.serve() as serving:
        work = site.madeira("work")
        try:
            sent = site.send(
                serving.port, "--source", durability, "--count", _SENDERS, "--connections", _SENDERS,
                "--prefix", "the-one!",
            )  # fmt: skip
            with psycopg.connect(site.database_url, autocommit=True) as record:

                def delivered() -> bool:
                    row = record.execute(
                        "SELECT count(*) FROM delivery_log WHERE outcome = 'succeeded'"
                    ).fetchone()
                    waiting = sum(site.redis_command("XLEN", shard.stream) for shard in Keys().inbound)
                    return row is not None and row[0] > 0 and waiting == 0

                wait_until(delivered, seconds=30)
        finally:
            # Whoever leaves ends what it has in hand: a second delivery would have arrived by now.
            end(work)
    arrived = site.ask("/report")["paths"]["/P"]["posts"]
    exact = sent.answers == {"202 accepted": 1, "202 duplicate": _SENDERS - 1} and arrived == 1
    return SameId(durability, sent.answers, arrived, exact)

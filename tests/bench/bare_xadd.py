"""The reference for bulk posts: redis-py's own pipelined XADD of the same bytes, and nothing else.

    python -m tests.bench.bare_xadd REDIS_URL COUNT AT_ONCE

Prints one JSON object. The stream is deleted at the end.
"""

from __future__ import annotations

import json
import sys
import time

import redis

from tests.bench.senders import event

_STREAM = "bench:xadd"


def add_all(url: str, *, count: int, at_once: int) -> float:
    """Entries per second."""
    events = [event(f"x-{number}", routing_key="P") for number in range(count)]
    with redis.Redis.from_url(url) as client:
        started = time.perf_counter()
        for first in range(0, count, at_once):
            pipeline = client.pipeline(transaction=False)
            for each in events[first : first + at_once]:
                pipeline.xadd(_STREAM, {"e": each})
            pipeline.execute()
        seconds = time.perf_counter() - started
        client.delete(_STREAM)
    return count / seconds


if __name__ == "__main__":
    url, count, at_once = sys.argv[1:]
    print(json.dumps({"per_second": add_all(url, count=int(count), at_once=int(at_once))}))

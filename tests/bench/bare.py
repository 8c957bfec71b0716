"""The reference for dispatch: an aiohttp client that signs and posts the same bodies, and does nothing else.

    python -m tests.bench.bare URL COUNT AT_ONCE BODY_BYTES

Prints one JSON object: posts per second and CPU seconds per 1,000 posts of this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
import time

import aiohttp
import uvloop

_KEY = b"bench-signing-key"


async def post_all(url: str, *, count: int, at_once: int, size: int) -> dict[str, float]:
    """Post `count` signed bodies of `size` bytes, `at_once` at a time."""
    left = iter(range(count))
    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one_lane() -> None:
            for number in left:
                body = b'{"order_id": %d, "text": "' % number
                body += b"x" * (size - len(body) - 2) + b'"}'
                timestamp = str(int(time.time()))
                signature = hmac.new(_KEY, timestamp.encode() + b"\n" + body, hashlib.sha256).hexdigest()
                headers = {
                    "Content-Type": "application/json",
                    "Idempotency-Key": f"bench:{number}",
                    "Madeira-Timestamp": timestamp,
                    "Madeira-Signature": signature,
                }
                async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"the receiver answered {answer.status}")

        started, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(one_lane() for _ in range(at_once)))
        took, used = time.monotonic() - started, time.process_time() - cpu
    return {"per_second": count / took, "cpu_s_per_1000": used / count * 1000}


if __name__ == "__main__":
    url, count, at_once, size = sys.argv[1:]
    print(json.dumps(uvloop.run(post_all(url, count=int(count), at_once=int(at_once), size=int(size)))))

"""The reference for ingest: an aiohttp.web handler that reads the body, checks the HMAC, answers 202, and no more.

python -m tests.bench.bare_web PORT_FILE
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from tests.bench.site import KEY


async def _accept(request: web.Request) -> web.Response:
    body = await request.read()
    expected = hmac.new(
        KEY.encode(), request.headers["Madeira-Timestamp"].encode() + b"\n" + body, hashlib.sha256
    ).hexdigest()
    if not hmac.compare_digest(expected, request.headers["Madeira-Signature"]):
        return web.json_response({"status": 401}, status=401)
    return web.Response(status=202, body=_ACCEPTED, content_type="application/json")


_ACCEPTED = json.dumps({"status": "accepted", "event_id": "e", "trace_id": "0" * 32}).encode()


async def serve(port_file: Path) -> None:
    """Serve on a free port of 127.0.0.1, named in `port_file`, until killed."""
    application = web.Application()
    application.router.add_post("/v1/events", _accept)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready = port_file.with_suffix(".new")
    ready.write_text(str(runner.addresses[0][1]))
    ready.rename(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))

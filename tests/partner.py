"""What tests send, and the real HTTP server that receives it: a thin harness around `madeira.banks`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, time

from madeira.bank_ledger import Bank
from madeira.banks import Banks
from sinks.partner import Partner
from sinks.webhook import Send
from streams.envelope import Envelope, Lane

MOMENT = datetime(2026, 3, 2, 1, 15, tzinfo=UTC)
BODY = b'{"order_id": 29401, "account_to": "87144583", "amount": 2452.00}'
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def partner(endpoint: str, **changes: object) -> Partner:
    """A partner on this machine that forgives 5 s of lateness, changed as the test says."""
    plain = Partner(name="AB", endpoint=endpoint, qps=50, allow_private=True, lateness=timedelta(seconds=5))
    return replace(plain, **changes)  # type: ignore[arg-type]


def envelope(event_id: str = "29401:2026-03-02", **changes: object) -> Envelope:
    """One payment order of the job `payment-orders`."""
    fields: dict[str, object] = {
        "event_id": event_id,
        "event_type": "payment-orders",
        "source": "payment-orders",
        "partner": "AB",
        "payload": BODY,
        "trace_id": TRACE_ID,
        "created_at": MOMENT,
        "updated_at": MOMENT,
        "lane": Lane.BATCH,
        **changes,
    }
    return Envelope(**fields)  # type: ignore[arg-type]


def attempt(to: Partner, *, event: Envelope | None = None, number: int = 1, wait_s: float = 0.0) -> Send:
    """An attempt whose slot is `wait_s` from now (negative: it has passed), signed with the present time."""
    return Send(
        partner=to,
        envelope=event or envelope(),
        attempt=number,
        start=monotonic() + wait_s,
        timestamp_s=int(time()),
    )


@asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """A port that accepts connections and never says a word; gives the port."""
    ends: list[asyncio.StreamWriter] = []

    async def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)

    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for end in ends:
            end.transport.abort()
        await server.wait_closed()


def banks(folder: Path, **behaviours: Bank) -> Banks:
    """The receiving banks with their ledger in `folder`; a bank that is not named behaves well."""
    return Banks(behaviours, ledger=folder / "ledger.jsonl")

"""The shop of the demo: instant payments, each a signed event, posted over HTTP while the night's batch drains.

It sits on the other side of the contract: it knows the API and its own key, and nothing of Madeira's stores. Every
ninth event is posted twice, as by somebody who did not hear the first answer. Its book has a line for each event
that was taken.

    SHOP_KEY=… python -m madeira.demo_shop --url http://127.0.0.1:8700 --orders F --every N --rate N --book F
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from sinks.partner import SignatureScheme
from sinks.signature import Headers, sign

SOURCE: Final = "shop"
_AGAIN_S = 0.25
_TWICE_EVERY = 9
_AT_ONCE = 32


class Sale(msgspec.Struct, frozen=True):
    """One event that was taken: its bank, id and amount in hundredths; `said` is the answer's word for it."""

    bank: str
    event_id: str
    minor: int
    said: str
    repeated: bool = False


class _Event(msgspec.Struct, frozen=True):
    bank: str
    event_id: str
    minor: int
    body: bytes


class _Answer(msgspec.Struct, frozen=True):
    status: str


def read_book(path: Path) -> list[Sale]:
    """What the shop has written down so far; a line that is being written is left to the next look."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Sale) for line in text.split(b"\n")[:-1]]


def events(orders: Path, every: int) -> Iterator[_Event]:
    """An instant payment like each `every`-th of the real orders: same bank, account and amount."""
    with orders.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file, delimiter=";"), start=1):
            if number % every == 0:
                event_id, amount = f"instant-{row['order_id']}", row["amount"]
                payload = {"order_id": event_id, "account_to": row["account_to"], "amount": amount}
                body = {
                    "event_id": event_id,
                    "event_type": "payment.instant",
                    "routing_key": row["bank_to"],
                    "amount": amount,
                    "currency": "CZK",
                    "payload": payload,
                }
                yield _Event(row["bank_to"], event_id, int(Decimal(amount) * 100), msgspec.json.encode(body))


async def _post(session: ClientSession, url: str, key: bytes, event: _Event) -> str:
    """Post until it is taken; the same bytes each time. Raises `RuntimeError` where it is refused for good."""
    while True:
        try:
            async with session.post(url, data=event.body, headers=_headers(key, event.body)) as response:
                body = await response.read()
                if response.status == 202:
                    return msgspec.json.decode(body, type=_Answer).status
                if response.status not in (429, 503):
                    raise RuntimeError(f"{event.event_id}: {response.status} {body.decode(errors='replace')}")
        except (ClientError, TimeoutError):
            pass  # not heard; the id makes a second post harmless
        await asyncio.sleep(_AGAIN_S)


def _headers(key: bytes, body: bytes) -> dict[str, str]:
    signed: Headers = sign(SignatureScheme.MADEIRA, (key,), body, timestamp_s=int(time.time()), message_id="")
    return {**dict(signed), "Madeira-Source": SOURCE, "Content-Type": "application/json"}


async def sell(url: str, orders: Path, *, every: int, rate: float, key: bytes, book: Path) -> None:
    """Post all events, `rate` a second, and write down what was taken."""
    room = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()
    with book.open("ab", buffering=0) as file:
        async with ClientSession(timeout=ClientTimeout(total=10)) as session, asyncio.TaskGroup() as group:

            async def one(event: _Event, *, repeated: bool) -> None:
                try:
                    said = await _post(session, f"{url}/v1/events", key, event)
                    sale = Sale(event.bank, event.event_id, event.minor, said, repeated)
                    file.write(msgspec.json.encode(sale) + b"\n")
                    if repeated:
                        await _post(session, f"{url}/v1/events", key, event)
                finally:
                    room.release()

            start = loop.time()
            for number, event in enumerate(events(orders, every), start=1):
                await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
                await room.acquire()
                group.create_task(one(event, repeated=number % _TWICE_EVERY == 0))


def main() -> None:
    """Sell once, then end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--orders", type=Path, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--book", type=Path, required=True)
    asked = parser.parse_args()
    key = os.environ["SHOP_KEY"].encode()
    asyncio.run(sell(asked.url, asked.orders, every=asked.every, rate=asked.rate, key=key, book=asked.book))


if __name__ == "__main__":
    main()

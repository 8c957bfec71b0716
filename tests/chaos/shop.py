"""Who posts live events to a night, and its book: what got a 202. It asks again until it has heard an answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from sinks.partner import SignatureScheme
from sinks.signature import sign

SURE, SWIFT = "shop", "till"
"""Sources with `durability = "postgres"` and `"redis"`."""

_AGAIN_S = 0.1
_TWICE_EVERY = 9
_AT_ONCE = 64


class Sold(msgspec.Struct, frozen=True):
    """One event that was answered 202, as the bank will see it."""

    bank: str
    key: str
    minor: int


@dataclass(slots=True)
class Shop:
    """Posts `rate` events a second from a thread of its own, to each bank and by each source in turn.

    Every ninth is posted once more, as by somebody who did not hear the first answer.
    """

    url: str
    secret: str
    banks: Sequence[str]
    rate: float
    sold: dict[str, Sold] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Answers that no store explains: each is a promise broken."""
    repeated: int = 0
    unheard: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin to sell."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._sell()))
        self._thread.start()

    def close(self) -> None:
        """Sell nothing new. `closed` says when all that was begun has been answered."""
        self._stop.set()

    def closed(self) -> bool:
        """Whether nothing is under way any more."""
        return self._thread is None or not self._thread.is_alive()

    def give_up(self) -> None:
        """Break off; for a night that is over."""
        self._stop.set()
        self.secret = ""
        if self._thread is not None:
            self._thread.join(30)

    async def _sell(self) -> None:
        room = asyncio.Semaphore(_AT_ONCE)
        started = time.monotonic()
        async with ClientSession(timeout=ClientTimeout(total=12)) as session, asyncio.TaskGroup() as group:

            async def one(number: int) -> None:
                try:
                    await self._one(session, number)
                finally:
                    room.release()

            for number in count(1):
                await asyncio.sleep(max(0.0, started + number / self.rate - time.monotonic()))
                await room.acquire()
                if self._stop.is_set():
                    break
                group.create_task(one(number))

    async def _one(self, session: ClientSession, number: int) -> None:
        source = (SURE, SWIFT)[number % 2]
        bank = self.banks[number % len(self.banks)]
        amount = f"{number}.{number % 100:02}"
        body = msgspec.json.encode(
            {
                "event_id": f"live-{number}", "event_type": "payment.instant", "routing_key": bank,
                "amount": amount, "currency": "CZK", "payload": {"order_id": f"live-{number}", "amount": amount},
            }
        )  # fmt: skip
        for again in range(2 if number % _TWICE_EVERY == 0 else 1):
            if not await self._taken(session, source, body):
                return
            key = f"{source}:live-{number}"
            self.sold.setdefault(key, Sold(bank, key, number * 100 + number % 100))
            self.repeated += again

    async def _taken(self, session: ClientSession, source: str, body: bytes) -> bool:
        while self.secret:
            signed = sign(
                SignatureScheme.MADEIRA,
                (self.secret.encode(),),
                body,
                timestamp_s=int(time.time()),
                message_id="",
            )
            headers = {**dict(signed), "Madeira-Source": source, "Content-Type": "application/json"}
            try:
                async with session.post(f"{self.url}/v1/events", data=body, headers=headers) as response:
                    answer = await response.read()
                    if response.status == 202:
                        return True
                    if response.status not in (429, 503):
                        self.refused.append(f"{response.status} {answer.decode(errors='replace')}")
                        return False
            except (ClientError, TimeoutError, OSError):
                self.unheard += 1
            await asyncio.sleep(_AGAIN_S)
        return False

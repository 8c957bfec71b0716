"""What a receiving bank is told to do, and what it knows: its behaviour, and the ledger that outlives it.

The ledger is one file for all banks, append-only, one JSON object a line. A restart reads it first, so a
bank forgets nothing that it has answered. `banks` serves it.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from pathlib import Path
from typing import Final, Literal

import msgspec

from sinks.partner import SignatureScheme

SECOND_US: Final = 1_000_000

Hostile = Literal[
    "", "never", "drip", "huge", "gzip_bomb", "short_length", "long_length", "html", "redirect", "garbage",
    "interim_flood", "header_flood", "early_bytes", "hang_up",
]  # fmt: skip


class Bank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one bank behaves. Everything is decided by the request itself or by counting, never by chance.

    `*_every` = k means each id whose CRC-32 is divisible by k. `hostile` answers are for every request, and
    book nothing.
    """

    secret: str = ""
    scheme: SignatureScheme = SignatureScheme.MADEIRA
    unavailable_s: float = 0
    """503 for this long after the first request."""
    unavailable_requests: int = 0
    """503 for the first so many requests."""
    soft_fail_every: int = 0
    """200 `{"success": false, "code": "TRY_LATER"}` at the first try of an id."""
    refuse_every: int = 0
    """200 `{"success": false, "code": "REFUSED"}`, always."""
    refuse_accounts: tuple[str, ...] = ()
    """400 for an `account_to` that ends so."""
    slow_ms: int = 0
    reset_once: bool = False
    """The first payment that would be booked is booked, then the connection is reset in place of an
    answer."""
    status: int = 0
    """This status to everything; nothing is booked."""
    answer: str = ""
    """The body that goes with `status`."""
    headers: tuple[tuple[str, str], ...] = ()
    """More headers on every answer."""
    hostile: Hostile = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the ledger: a request as it arrived, and what was said to it.

    `at_us` is the wall clock, `arrived_us` the monotonic one, both in microseconds. `signed` is None where
    the bank has no secret. `amount_minor` is the amount in hundredths, None when the body has no amount
    that fits.
    """

    bank: str
    id: str
    attempt: str
    at_us: int
    arrived_us: int
    sha256: str
    status: int
    accepted: bool = False
    signed: bool | None = None
    amount_minor: int | None = None


class Totals(msgspec.Struct, kw_only=True):
    """What one bank has received. `duplicates` are ids that came again after they had been accepted."""

    requests: int = 0
    accepted: int = 0
    accepted_minor: int = 0
    duplicate_requests: int = 0
    duplicates: list[str] = msgspec.field(default_factory=list)
    other_body: list[str] = msgspec.field(default_factory=list)
    badly_signed: int = 0
    without_amount: int = 0
    most_per_second: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """`GET /_ledger`. `worst_stall_ms` is how long this process was once late to notice anything at all."""

    banks: dict[str, Totals]
    worst_stall_ms: float


class Books:
    """One bank's memory, rebuilt from its lines."""

    def __init__(self, behaviour: Bank) -> None:
        self.behaviour = behaviour
        self.totals = Totals()
        self.accepted: dict[str, str] = {}
        self.tries: Counter[str] = Counter()
        self.first_us: int | None = None
        self.reset_done = False
        self._second: deque[int] = deque()

    def enter(self, entry: Entry) -> None:
        """Count one line."""
        totals = self.totals
        totals.requests += 1
        self.tries[entry.id] += 1
        totals.badly_signed += entry.signed is False
        known = self.accepted.get(entry.id)
        if known is not None:
            totals.duplicate_requests += 1
            if entry.id not in totals.duplicates:
                totals.duplicates.append(entry.id)
            if known != entry.sha256 and entry.id not in totals.other_body:
                totals.other_body.append(entry.id)
        elif entry.accepted:
            self.accepted[entry.id] = entry.sha256
            totals.accepted += 1
            totals.accepted_minor += entry.amount_minor or 0
            totals.without_amount += entry.amount_minor is None

    def arrive(self, arrived_us: int) -> None:
        """Count one arrival in the second that ends with it."""
        if self.first_us is None:
            self.first_us = arrived_us
        second = self._second
        second.append(arrived_us)
        while arrived_us - second[0] >= SECOND_US:
            second.popleft()
        self.totals.most_per_second = max(self.totals.most_per_second, len(second))


class Ledger:
    """The books of every bank, in one file. `script` says how each bank behaves, `*` is every other bank."""

    def __init__(self, script: dict[str, Bank], path: Path) -> None:
        self._script = script
        self._path = path
        self._books: dict[str, Books] = {}
        self._encoder = msgspec.json.Encoder()
        self._file = -1

    def open(self) -> None:
        """Remember what the file says, then append to it until `close`."""
        self._read()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Nothing is written after this; what was written can still be read."""
        os.close(self._file)

    def totals(self) -> dict[str, Totals]:
        """What each bank has received so far, by name."""
        return {name: books.totals for name, books in sorted(self._books.items())}

    def entries(self) -> list[Entry]:
        """Every line of the ledger so far, in the order of arrival."""
        return [msgspec.json.decode(line, type=Entry) for line in self._path.read_bytes().splitlines()]

    def books(self, bank: str) -> Books:
        """The memory of one bank, begun when it is first spoken to."""
        if bank not in self._books:
            self._books[bank] = Books(self._script.get(bank) or self._script.get("*") or Bank())
        return self._books[bank]

    def write(self, entry: Entry) -> None:
        """Into the file, then into memory."""
        os.write(self._file, self._encoder.encode(entry) + b"\n")
        self.books(entry.bank).enter(entry)

    def _read(self) -> None:
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):  # killed in the middle of a line: that request was never answered
            os.truncate(self._path, len(whole))
        for line in whole.splitlines():
            entry = msgspec.json.decode(line, type=Entry)
            books = self.books(entry.bank)
            books.enter(entry)
            books.reset_done = True

"""What came of one send, as values: the partner's answer, a failure, or a slot that was given up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final

import msgspec

LONGEST_RETRY_AFTER: Final = timedelta(days=31)
"""A partner that asks for more is taken to mean this."""


class Stage(StrEnum):
    """How far a send came before it failed."""

    REQUEST = "request"
    """It cannot be put into a request at all (a header or URL that HTTP does not allow)."""
    ADDRESS = "refused_address"
    """The name leads to an address that this partner may not have."""
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    RESET = "reset"
    """The connection ended before the answer did."""
    GARBLED = "garbled"
    """What came back is not HTTP."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer. `body` holds at most 64 KiB as received (never decompressed); `truncated` says that
    more came.

    `sent_at` is when the request was handed to the socket, `ended_at` when the answer was complete, both in
    seconds of `time.monotonic()`. `headers` are there for a partner that has a `retry_when`: names in small letters,
    what came more than once joined by a comma.
    """

    status: int
    retry_after: timedelta | None
    body: bytes
    truncated: bool
    sent_at: float
    ended_at: float
    headers: tuple[tuple[str, str], ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """No whole answer. `sent_at` is None when nothing left this machine, which is when `may_have_arrived`
    is False.

    `status` is the answer's if its head had come. `reason` is one short line, without anything that the
    partner wrote.
    """

    stage: Stage
    may_have_arrived: bool
    reason: str
    sent_at: float | None
    ended_at: float
    status: int | None = None


class SlotMissed(msgspec.Struct, frozen=True):
    """Nothing was sent, for no fault of the partner: the slot went by, or every connection was taken.

    The entry stays with the worker and waits for another slot; no attempt is counted. `connecting` says that making
    the connection took too long: that is the partner's distance, and no sign that this process has too much to do.
    """

    late_by: timedelta
    reason: str = "late"
    connecting: bool = False


def parse_retry_after(value: str | None, now: datetime) -> timedelta | None:
    """The wait that a `Retry-After` header asks for (RFC 9110, 10.2.3: seconds, or an HTTP date).

    None for no header or an unreadable one; never negative, never above `LONGEST_RETRY_AFTER`.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), LONGEST_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
        # RFC 9110 dates are GMT whether or not the zone was understood.
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, OverflowError):
        return None
    return max(timedelta(0), min(wait, LONGEST_RETRY_AFTER))

"""The event as it travels: what came in, byte for byte, and what Madeira needs to know beside it."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

import msgspec

from streams.delivery import State

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of sources, partners, tenants and jobs (use `fullmatch`)."""

EVENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""Event ids (use `fullmatch`)."""

VERSION = 1


class Lane(StrEnum):
    """Live events go first; batch rows keep their floor."""

    LIVE = "live"
    BATCH = "batch"


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event for one partner. `payload` is what is signed, stored, sent and replayed, never re-encoded.

    `amount` is exact, in units of `currency` (both or neither). Times are UTC. `retry_count` and `status`
    are as of the moment when the entry was fed; the stream's own fields say what happened since.
    """

    event_id: str
    event_type: str
    source: str
    partner: str
    payload: bytes
    trace_id: str
    created_at: datetime
    updated_at: datetime
    lane: Lane
    content_type: str = "application/json"
    routing_key: str = ""
    target_uri: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    retry_count: int = 0
    status: State = State.PENDING
    tenant: str = "default"
    batch_id: int | None = None
    business_date: date | None = None
    amount: Decimal | None = None
    currency: str | None = None
    order_key: str | None = None
    replayed_at: datetime | None = None
    """When an operator sent it on its way again; its age and its attempts count from then."""
    attempts_before: int = 0
    version: int = VERSION

    @property
    def delivery(self) -> str:
        """`source:event_id`: the field in the partner's `open` hash and its `Idempotency-Key`."""
        return f"{self.source}:{self.event_id}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """The envelope as MessagePack, payload untouched inside."""
    return _encoder.encode(envelope)


def decode(data: bytes) -> Envelope:
    """The envelope back. Raises `msgspec.ValidationError` or `msgspec.DecodeError` for anything else."""
    return _decoder.decode(data)

"""Live events as `part/insert_events` takes them: one JSON text, bytes as Base64."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

import msgspec

from streams.inbound import Inbound
from streams.money import to_minor


class _Row(msgspec.Struct, frozen=True, gc=False):
    """An event's columns, by their names."""

    source: str
    event_id: str
    event_type: str
    routing_key: str
    target_uri: str
    tenant: str
    tags: dict[str, str] | None
    content_type: str
    body: bytes
    body_sha256: bytes
    trace_id: str
    created_at: datetime
    business_date: date | None
    amount_minor: int | None
    currency: str | None
    order_key: str | None
    version: int


_encode = msgspec.json.Encoder().encode


def event_rows(events: Sequence[Inbound]) -> str:
    """The events as JSON. Raises `MoneyError` for an amount that is not exact."""
    return _encode(
        [
            _Row(
                event.source,
                event.event_id,
                event.event_type,
                event.routing_key,
                event.target_uri,
                event.tenant,
                event.tags or None,
                event.content_type,
                event.payload,
                event.body_sha256,
                event.trace_id,
                event.created_at,
                event.business_date,
                _minor(event),
                event.currency,
                event.order_key,
                event.version,
            )
            for event in events
        ]
    ).decode()


def _minor(event: Inbound) -> int | None:
    if event.amount is None or event.currency is None:
        return None
    return to_minor(event.amount, event.currency)

"""`codecs`: the envelope in JSON, MessagePack and Protocol Buffers: bytes, and microseconds to encode and decode.

The Protocol Buffers message is built at run time, so no generated file has to be kept: upb encodes it the same way.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from streams import envelope
from streams.delivery import State
from streams.envelope import Envelope, Lane
from tests.bench.site import ROOT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LANES, _STATES = list(Lane), list(State)
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
_INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_TEXTS = (
    "event_id", "event_type", "source", "partner", "content_type", "routing_key", "target_uri", "tenant", "order_key",
)  # fmt: skip
_OPTIONAL_TEXTS = ("business_date", "amount", "currency")
_NUMBERS = ("created_at", "updated_at", "lane", "status", "retry_count", "batch_id", "version")


@dataclass(frozen=True, slots=True)
class Codec:
    """Medians over the rounds for one codec and one set of envelopes; microseconds for one envelope."""

    envelopes: str
    codec: str
    bytes_each: float
    payload_bytes_each: float
    encode_us: float
    decode_us: float


class _Protobuf:
    """The envelope as a message, there and back."""

    def __init__(self) -> None:
        file = descriptor_pb2.FileDescriptorProto(name="envelope.proto", package="bench", syntax="proto3")
        message = file.message_type.add(name="Envelope")
        # Numbers below 16 take one byte; the fields that are always there come first.
        fields = [("payload", _BYTES), ("trace_id", _BYTES)]
        fields += [(name, _INT64) for name in _NUMBERS]
        fields += [(name, _STRING) for name in (*_TEXTS, *_OPTIONAL_TEXTS)]
        for number, (name, kind) in enumerate(fields, 1):
            message.field.add(name=name, number=number, type=kind, label=1)
        entry = message.nested_type.add(name="TagsEntry")
        entry.options.map_entry = True
        for number, name in enumerate(("key", "value"), 1):
            entry.field.add(name=name, number=number, type=_STRING, label=1)
        message.field.add(
            name="tags", number=len(fields) + 1, type=11, label=3, type_name=".bench.Envelope.TagsEntry"
        )
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self.message: Callable[..., Any] = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("bench.Envelope")
        )

    def fill(self, e: Envelope) -> Any:
        """A message with what is in the envelope."""
        return self.message(
            **{name: getattr(e, name) or "" for name in _TEXTS},
            payload=e.payload,
            trace_id=bytes.fromhex(e.trace_id),
            created_at=(e.created_at - _EPOCH) // _MICROSECOND,
            updated_at=(e.updated_at - _EPOCH) // _MICROSECOND,
            lane=_LANES.index(e.lane),
            status=_STATES.index(e.status),
            retry_count=e.retry_count,
            batch_id=e.batch_id or 0,
            version=e.version,
            business_date="" if e.business_date is None else e.business_date.isoformat(),
            amount="" if e.amount is None else str(e.amount),
            currency=e.currency or "",
            tags=e.tags,
        )

    def encode(self, e: Envelope) -> bytes:
        data: bytes = self.fill(e).SerializeToString()
        return data

    def parse(self, data: bytes) -> Any:
        message = self.message()
        message.ParseFromString(data)
        return message

    def decode(self, data: bytes) -> Envelope:
        m = self.parse(data)
        return Envelope(
            event_id=m.event_id,
            event_type=m.event_type,
            source=m.source,
            partner=m.partner,
            payload=m.payload,
            trace_id=m.trace_id.hex(),
            created_at=_EPOCH + timedelta(microseconds=m.created_at),
            updated_at=_EPOCH + timedelta(microseconds=m.updated_at),
            lane=_LANES[m.lane],
            content_type=m.content_type,
            routing_key=m.routing_key,
            target_uri=m.target_uri,
            tags=dict(m.tags),
            retry_count=m.retry_count,
            status=_STATES[m.status],
            tenant=m.tenant,
            batch_id=m.batch_id or None,
            business_date=date.fromisoformat(m.business_date) if m.business_date else None,
            amount=Decimal(m.amount) if m.amount else None,
            currency=m.currency or None,
            order_key=m.order_key or None,
            version=m.version,
        )


def measure(*, rounds: int = 7) -> list[Codec]:
    """Each codec in turn, round by round, so that a busy moment of the machine meets all of them."""
    found: list[Codec] = []
    for name, envelopes in (("500-byte payload", _plain(1_000)), ("orders of data/", _orders())):
        found += _compare(name, envelopes, rounds=rounds)
    return found


def _compare(name: str, envelopes: Sequence[Envelope], *, rounds: int) -> list[Codec]:
    protobuf = _Protobuf()
    messages = [protobuf.fill(each) for each in envelopes]
    wire = [message.SerializeToString() for message in messages]
    ways: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
        "JSON": (msgspec.json.Encoder().encode, msgspec.json.Decoder(Envelope).decode),
        "MessagePack": (envelope.encode, envelope.decode),
        "Protocol Buffers": (protobuf.encode, protobuf.decode),
    }
    times: dict[str, list[tuple[float, float]]] = {}
    encoded = {codec: [encode(each) for each in envelopes] for codec, (encode, _) in ways.items()}
    for codec, (_, decode) in ways.items():
        if [decode(each) for each in encoded[codec]] != list(envelopes):
            raise RuntimeError(f"{codec} does not give back what went in")
    for _ in range(rounds):
        for codec, (encode, decode) in ways.items():
            times.setdefault(codec, []).append(
                (
                    _us(partial(map, encode, envelopes), envelopes),
                    _us(partial(map, decode, encoded[codec]), envelopes),
                )
            )
        # The message alone: what code that uses it in place of our own type would pay.
        times.setdefault("Protocol Buffers, message only", []).append(
            (
                _us(lambda: (message.SerializeToString() for message in messages), envelopes),
                _us(partial(map, protobuf.parse, wire), envelopes),
            )
        )
    encoded["Protocol Buffers, message only"] = wire
    return [
        Codec(
            envelopes=name,
            codec=codec,
            bytes_each=statistics.mean(map(len, encoded[codec])),
            payload_bytes_each=statistics.mean(len(each.payload) for each in envelopes),
            encode_us=statistics.median(encode for encode, _ in taken),
            decode_us=statistics.median(decode for _, decode in taken),
        )
        for codec, taken in times.items()
    ]


def _us(run: Callable[[], Any], envelopes: Sequence[Envelope]) -> float:
    started = time.perf_counter()
    for _ in run():
        pass
    return (time.perf_counter() - started) / len(envelopes) * 1e6


def _plain(count: int) -> list[Envelope]:
    """Live events with a payload of 500 bytes and nothing that is optional."""
    moment = datetime(2026, 1, 15, 1, 2, 3, 456789, tzinfo=UTC)
    return [
        Envelope(
            event_id=f"order-{number}",
            event_type="payment.created",
            source="shop",
            partner="AB",
            payload=b'{"order": %d, "text": "%b"}' % (10_000_000 + number, b"x" * 469),
            trace_id=f"{number * 2654435761:032x}",
            created_at=moment + timedelta(milliseconds=number),
            updated_at=moment + timedelta(milliseconds=number),
            lane=Lane.LIVE,
        )
        for number in range(count)
    ]


def _orders() -> list[Envelope]:
    """The real payment orders as rows of a night's batch."""
    moment = datetime(2026, 1, 15, 0, 15, tzinfo=UTC)
    with (ROOT / "data" / "payment_orders.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter=";"))
    return [
        Envelope(
            event_id=f"{row['order_id']}:2026-01-15",
            event_type="payment-orders",
            source="payment-orders",
            partner=row["bank_to"],
            payload=msgspec.json.encode(
                {
                    **row,
                    "order_id": int(row["order_id"]),
                    "account_id": int(row["account_id"]),
                    "amount": Decimal(row["amount"]),
                    "business_date": "2026-01-15",
                }
            ),
            trace_id=f"{int(row['order_id']) * 2654435761:032x}",
            created_at=moment,
            updated_at=moment,
            lane=Lane.BATCH,
            batch_id=1,
            business_date=date(2026, 1, 15),
            amount=Decimal(row["amount"]),
            currency="CZK",
        )
        for row in rows
    ]

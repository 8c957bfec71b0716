"""The envelope travels whole."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streams.delivery import State
from streams.envelope import EVENT_ID, NAME, decode, encode
from tests.partner import envelope

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault


@NO_DEADLINE
@given(
    payload=st.binary(max_size=300),
    amount=st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=2),
    tags=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    created_at=st.datetimes(
        min_value=datetime(1990, 1, 1),  # noqa: DTZ001 - the zone is the next argument
        timezones=st.just(UTC),
    ),
    batch=st.none() | st.integers(1, 2**62),
)
def test_what_went_in_comes_out(
    payload: bytes,
    amount: Decimal | None,
    tags: dict[str, str],
    created_at: datetime,
    batch: int | None,
) -> None:
    """Byte for byte and cent for cent."""
    sent = envelope(
        payload=payload, amount=amount, tags=tags, created_at=created_at, batch_id=batch,
        business_date=date(2026, 3, 2), status=State.RETRYING,
    )  # fmt: skip
    found = decode(encode(sent))
    assert found == sent
    assert found.payload == payload
    assert str(found.amount) == str(amount)


def test_the_delivery_is_its_idempotency_key() -> None:
    """Source and event id."""
    assert envelope("1:2026-03-02").delivery == "payment-orders:1:2026-03-02"


def test_an_amount_travels_as_text() -> None:
    """No float on the way: what another reader finds is the exact decimal, zeros included."""
    sent = encode(envelope(amount=Decimal("2452.00"), currency="CZK"))
    assert msgspec.msgpack.decode(sent)["amount"] == "2452.00"


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"event_id": 1})])
def test_anything_else_is_refused(data: bytes) -> None:
    """Bytes that are no envelope raise, they never become half of one."""
    with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
        decode(data)


def test_times_keep_their_moment() -> None:
    """A time in another zone is the same moment."""
    prague = datetime(2026, 3, 2, 2, 15, tzinfo=timezone(timedelta(hours=1)))
    assert decode(encode(envelope(created_at=prague))).created_at == datetime(2026, 3, 2, 1, 15, tzinfo=UTC)


@pytest.mark.parametrize("name", ["A", "payment-orders", "x_1", "A" * 64])
def test_names(name: str) -> None:
    """Letters, digits, underscore and dash, up to 64."""
    assert NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "{a}", "á", "a\n", "A" * 65, "a/b", "a.b"])
def test_what_is_no_name(name: str) -> None:
    """Nothing that would mean something in a key, a path or a hash tag."""
    assert not NAME.fullmatch(name)


@pytest.mark.parametrize(
    ("event_id", "fine"),
    [
        ("1:2026-03-02", True),
        ("a.b_c-d", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("a b", False),
        ("a/b", False),
    ],
)
def test_event_ids(event_id: str, *, fine: bool) -> None:
    """As names, with dots and colons, up to 128."""
    assert bool(EVENT_ID.fullmatch(event_id)) is fine

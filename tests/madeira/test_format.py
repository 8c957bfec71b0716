"""An event as it is posted: the fast way and the slow one hold to the same rules."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madeira.format import KEYS, Mistake, mistakes, read, trace_of
from streams.inbound import Inbound

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def reading(body: bytes) -> Inbound | tuple[Mistake, ...]:
    """What `shop` sent."""
    return read(body, source="shop", tenant="default", created_at=NOW, trace_id="a" * 32)


NEAR = {
    "event_id": st.sampled_from(["1", "a.b:c-_", "", "a b", "x" * 129, "a\n", 7, None]),
    "event_type": st.sampled_from(["t", "payment.created", "", "a b", "é", "x" * 128, "x" * 129, 1.5]),
    "payload": st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner),
        max_leaves=5,
    ),
    "payload_base64": st.sampled_from(["", "AA==", "AA", "AAAA", "A A=", "é", None])
    | st.binary().map(lambda b: b64encode(b).decode()),
    "content_type": st.sampled_from(
        ["a/b", "a/b; c=d", "a", "", "a/b;é", "a/b\r\nX: y", "text/" + "x" * 260]
    ),
    "routing_key": st.sampled_from(["", "AB", "é", "\x00", "\x7f", "x" * 256, "x" * 257, 0]),
    "target_uri": st.sampled_from(
        [
            *(
                "https://a",
                "http://a.b:8443/c?d=%20",
                "https://",
                "https://u@a",
                "https://a:0",
                "https://a:99999",
            ),
            *(
                "https://a:b",
                "https://[::1]/",
                "https://[::1",
                "https://a/%zz",
                "https://a/#x",
                "https://a/ b",
                "",
            ),
            *("HTTPS://a", "https://a/" + "x" * 2048, "https://a/é", "https://:80/", None),
        ]
    ),
    "tags": st.dictionaries(
        st.sampled_from(["a", "b c", "", "event_id", "x" * 65]), st.sampled_from(["", "v", "\n", 1])
    )
    | st.just({f"k{n}": "" for n in range(17)})
    | st.sampled_from([None, [], "a"]),
    "trace_id": st.sampled_from(["f" * 32, "F" * 32, "0" * 32, "f" * 31, "", "g" * 32, 1]),
    "business_date": st.sampled_from(
        ["2026-03-31", "2026-02-30", "2026-3-1", "20260331", "2026-03-31T00:00:00", "", None]
    ),
    "amount": st.sampled_from(
        [
            *(
                "1.50",
                "1.505",
                "-0",
                "01",
                "+1",
                "1,5",
                " 1",
                "1e2",
                "NaN",
                "9" * 20,
                "9" * 70,
                "",
                1,
                -2,
                1.25,
                1e300,
                True,
                None,
            )
        ]
    ),
    "currency": st.sampled_from(["EUR", "JPY", "BHD", "XAU", "eur", "EURO", "", 978]),
    "order_key": st.sampled_from(["k", "", "x" * 257, "\n", None]),
    "source": st.sampled_from(["shop", "", "other", 1]),
    "evnt_id": st.just(1),
}
GOOD = {
    "event_id": "a.b:c-_1",
    "event_type": "payment.created",
    "content_type": "application/xml; charset=utf-8",
    "routing_key": "A B é",
    "target_uri": "https://ab.example:8443/c?d=%20",
    "tags": {"region": "sh", "event_id": ""},
    "trace_id": "0aF" + "1" * 29,
    "business_date": "2026-03-31",
    "order_key": "k",
    "source": "shop",
}
OBJECTS = st.builds(
    lambda keys, payload, money, bad: (
        {key: GOOD[key] for key in GOOD if key in ("event_id", "event_type") or key in keys}
        | payload
        | money
        | bad
    ),
    keys=st.sets(st.sampled_from(sorted(GOOD))),
    payload=st.fixed_dictionaries({"payload": NEAR["payload"]})
    | st.just({"payload_base64": "AP8=", "content_type": "a/b"}),
    money=st.sampled_from([{}, {"amount": "1.50", "currency": "EUR"}, {"currency": "JPY", "amount": -7}]),
    bad=st.just({})
    | st.sampled_from(sorted(NEAR)).flatmap(lambda key: st.fixed_dictionaries({key: NEAR[key]})),
)


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_what_the_fast_way_takes_has_no_mistake(
    event: dict[str, object], indent: int | None, ascii_: bool
) -> None:
    """And what it refuses has one that is named: never a refusal without a reason, nor the other way round."""
    body = json.dumps(event, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    found, named = reading(body), mistakes(body, source="shop")
    if isinstance(found, Inbound):
        assert named == ()
        assert found.body_sha256 == sha256(body).digest()
        assert found.event_id == event["event_id"]
        if "payload" in event:
            assert json.loads(found.payload) == event["payload"]
            assert found.payload in body
    else:
        assert found == named != ()


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_an_event_or_have_a_mistake(payload: bytes) -> None:
    """Whatever stands where the payload should: it comes out as it is, and is JSON, or is refused by name."""
    body = b'{"event_id":"1","event_type":"t","payload":' + payload + b"}"
    found = reading(body)
    if isinstance(found, Inbound):
        assert found.payload in body
        json.loads(found.payload)
    else:
        assert found


@given(st.lists(st.sampled_from(KEYS), min_size=1), st.data())
def test_no_doubled_key_passes(keys: list[str], data: st.DataObject) -> None:
    """Whatever the order, the escapes and the white space."""
    values = {
        "event_id": '"1"',
        "event_type": '"t"',
        "payload": '{"payload":1,"payload":2}',
        "routing_key": '"\\""',
    }
    values |= {
        "order_key": '"k\\u0061"',
        "source": '"shop"',
        "trace_id": f'"{"f" * 32}"',
        "tags": '{"tags":"x"}',
    }
    chosen = ["event_id", "event_type", "payload", *(key for key in keys if key in values)]
    order = data.draw(st.permutations(chosen))
    gaps = st.sampled_from(["", " ", "\n\t"])
    escaped = {key: f"\\u{ord(key[0]):04x}{key[1:]}" for key in chosen}
    spelled = [
        f'{data.draw(gaps)}"{data.draw(st.sampled_from([key, escaped[key]]))}"'
        f"{data.draw(gaps)}:{data.draw(gaps)}{values[key]}"
        for key in order
    ]
    found = reading(("{" + ",".join(spelled) + "}").encode())
    doubled = {f"$.{key}" for key in order if order.count(key) > 1}
    if doubled:
        assert not isinstance(found, Inbound)
        assert {mistake.path for mistake in found} == doubled
    else:
        assert isinstance(found, Inbound)


@pytest.mark.parametrize(
    ("amount", "currency", "exact"),
    [
        ("12.5", "EUR", "12.50"),
        ('"12.50"', "EUR", "12.50"),
        ("-7", "JPY", "-7"),
        ("1e2", "CZK", "100.00"),
        ("0.123", "BHD", "0.123"),
        ("92233720368547758.07", "EUR", "92233720368547758.07"),
        ("0.1000000000000000055511151231257827", "EUR", None),
        ("92233720368547758.08", "EUR", None),
        ("0.5", "JPY", None),
        ("1", "XAU", None),
        ('"1e2"', "EUR", None),
        ("1e99", "EUR", None),
    ],
)
def test_money_is_exact(amount: str, currency: str, exact: str | None) -> None:
    """As text or number, with all decimals of its currency and no others."""
    body = f'{{"event_id":"1","event_type":"t","payload":1,"amount":{amount},"currency":"{currency}"}}'
    found = reading(body.encode())
    if exact is None:
        assert not isinstance(found, Inbound)
        assert {mistake.path for mistake in found} <= {"$.amount", "$.currency"}
    else:
        assert isinstance(found, Inbound)
        assert str(found.amount) == str(Decimal(exact))


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (None, None),
        (f"00-{'a' * 32}-{'b' * 16}-01", "a" * 32),
        (f"01-{'a' * 32}-{'b' * 16}-00-more", "a" * 32),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None),
        (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None),
        (f"00-{'A' * 32}-{'b' * 16}-01", None),
        ("", None),
    ],
)
def test_traceparent(header: str | None, trace_id: str | None) -> None:
    """W3C Trace Context: a version that may come, no zeros, small letters."""
    assert trace_of(header) == trace_id


def test_a_body_of_nothing_but_unknown_keys_is_not_looked_at_for_long() -> None:
    """The nearest known key is looked for where it can be told, not 25,000 times: that would hold up everybody."""
    body = b'{"event_id":"1","event_type":"t","payload":1%b}' % b"".join(
        b',"k%x":1' % i for i in range(25_000)
    )
    looked = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal looked
        looked += event == "call" and frame.f_code.co_name == "get_close_matches"

    sys.setprofile(see)
    try:
        found = mistakes(body, source="shop")
    finally:
        sys.setprofile(None)
    assert len(found) == 50
    assert looked == 50

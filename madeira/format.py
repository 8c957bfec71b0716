"""One event as it is posted: bytes → `Inbound`, or every mistake in it by its JSON path. Pure.

`read` is the fast way and only says no; `mistakes` reads the same bytes again, slowly, and says what is wrong. Both
hold to the same rules: what one refuses the other can name.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from streams.envelope import EVENT_ID
from streams.inbound import Inbound
from streams.money import EXPONENTS, MoneyError, to_decimal, to_minor

MOST_MISTAKES: Final = 50
"""So many are named; a body that is all mistakes gets no answer of its own size."""

_VISIBLE: Final = re.compile(r"[!-~]{1,128}")
_KEY: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f]*")
_TRACE: Final = re.compile(r"(?!0{32})[0-9A-Fa-f]{32}")
_CONTENT_TYPE: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: *;[ -~]*)?")
_HOST: Final = r"(?:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])"
_PORT: Final = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_PATH: Final = r"(?:[A-Za-z0-9._~:/@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_QUERY: Final = r"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_URI: Final = re.compile(rf"https?://{_HOST}(?::{_PORT})?(?:/{_PATH})?(?:\?{_QUERY})?")
_AMOUNT: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_AMOUNT_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_SPACE: Final = b" \t\r\n:"
_APART: Final = re.compile(rb'"[ \t\r\n]+:')
"""A key that its colon does not follow at once."""

_LONGEST_AMOUNT: Final = 64


class Mistake(msgspec.Struct, frozen=True):
    """`path` is where, as JSON path (`$.event_id`); `message` what is wrong and how it would be right."""

    path: str
    message: str


def _whole(pattern: re.Pattern[str]) -> str:
    """A pattern as msgspec takes it: it searches, we mean all of the text."""
    return rf"\A(?:{pattern.pattern})\Z"


_Text = Annotated[str, msgspec.Meta(pattern=_whole(_KEY), max_length=256)]


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """The object of a request. An absent `payload` is empty: no JSON value is."""

    event_id: Annotated[str, msgspec.Meta(pattern=_whole(EVENT_ID))]
    event_type: Annotated[str, msgspec.Meta(pattern=_whole(_VISIBLE))]
    payload: msgspec.Raw = msgspec.Raw(b"")
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    content_type: Annotated[str, msgspec.Meta(pattern=_whole(_CONTENT_TYPE), max_length=255)] = ""
    routing_key: _Text = ""
    target_uri: Annotated[str, msgspec.Meta(pattern=_whole(_URI), max_length=2048)] = ""
    tags: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=_whole(_KEY), min_length=1, max_length=64)], _Text],
        msgspec.Meta(max_length=16),
    ] = {}
    trace_id: Annotated[str, msgspec.Meta(pattern=_whole(_TRACE))] = ""
    business_date: date | msgspec.UnsetType = msgspec.UNSET
    amount: msgspec.Raw = msgspec.Raw(b"")
    currency: Annotated[str, msgspec.Meta(pattern=r"\A[A-Z]{3}\Z")] = ""
    order_key: Annotated[str, msgspec.Meta(pattern=_whole(_KEY), min_length=1, max_length=256)] = ""
    source: str = ""


KEYS: Final = _Wire.__struct_fields__
"""Every key that an event may have."""

_decode = msgspec.json.Decoder(_Wire).decode


def read(
    body: bytes, *, source: str, tenant: str, created_at: datetime, trace_id: str
) -> Inbound | tuple[Mistake, ...]:
    """The event of a request's body (or of one line), or its mistakes, at least one.

    `trace_id` is for an event that brings none. `payload` is the very bytes that stand in the body.
    """
    try:
        wire = _decode(body)
        # msgspec steps over the payload without looking at its text.
        if not body.isascii():
            body.decode()
        payload = bytes(wire.payload)
        if payload:
            content_type = wire.content_type or "application/json"
            sure = wire.payload_base64 is msgspec.UNSET and _keys_differ(body, wire)
        else:
            payload = b64decode(_given(wire.payload_base64), validate=True)
            content_type = wire.content_type
            sure = content_type != "" and _keys_differ(body, wire)
        amount = _exact(wire.amount, wire.currency) if wire.amount or wire.currency else None
        sure = sure and wire.source in ("", source)
    except (ValueError, RecursionError) as error:
        return mistakes(body, source=source) or (Mistake("$", f"is not right: {error}"),)
    if not sure and (found := mistakes(body, source=source)):
        return found
    return Inbound(
        event_id=wire.event_id,
        event_type=wire.event_type,
        source=source,
        tenant=tenant,
        payload=payload,
        body_sha256=sha256(body.strip()).digest(),
        trace_id=wire.trace_id.lower() or trace_id,
        created_at=created_at,
        content_type=content_type,
        routing_key=wire.routing_key,
        target_uri=wire.target_uri,
        tags=wire.tags,
        business_date=None if wire.business_date is msgspec.UNSET else wire.business_date,
        amount=amount,
        currency=wire.currency or None,
        order_key=wire.order_key or None,
    )


def trace_of(traceparent: str | None) -> str | None:
    """The trace id of a valid W3C `traceparent` header, version 00 or later."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    return None if found is None else found[1]


def _keys_differ(body: bytes, wire: _Wire) -> bool:
    """Whether no key stands twice in the object or in its tags; False also where that is not seen cheaply.

    By counting: every key ends with `":`, no value does, and of a key that stands twice only one has a value here.
    The payload is left out, for it may hold what it likes.
    """
    begin = end = len(body)
    payload = bytes(wire.payload)
    if payload:
        begin = body.find(b'"payload"') + 9
        while begin < len(body) and body[begin] in _SPACE:
            begin += 1
        if not body.startswith(payload, begin):
            return False
        end = begin + len(payload)
    if body.find(b"\\", 0, begin) >= 0 or body.find(b"\\", end) >= 0:
        return False  # a key may be written with escapes, a text may hold a quote
    if _APART.search(body, 0, begin) or _APART.search(body, end):
        return False
    keys = (
        3  # event_id, event_type, and payload or payload_base64
        + (wire.routing_key != "")
        + (wire.content_type != "")
        + (wire.target_uri != "")
        + (wire.trace_id != "")
        + (wire.business_date is not msgspec.UNSET)
        + (len(wire.amount) != 0)
        + (wire.currency != "")
        + (wire.order_key != "")
        + (wire.source != "")
        + (1 + len(wire.tags) if wire.tags else 0)
    )
    return body.count(b'":', 0, begin) + body.count(b'":', end) == keys


def _given(text: str | msgspec.UnsetType) -> str:
    if text is msgspec.UNSET:
        raise ValueError("neither payload nor payload_base64")
    return text


def _exact(written: msgspec.Raw, currency: str) -> Decimal:
    """The amount with all decimals of its currency. Raises `ValueError` (also `MoneyError`)."""
    text = bytes(written).decode()
    fault = (
        _fault_of_amount(text[1:-1], quoted=True) if text[:1] == '"' else _fault_of_amount(text, quoted=False)
    )
    if fault is not None:
        raise ValueError(fault)
    return to_decimal(to_minor(Decimal(text.strip('"')), currency), currency)


def _fault_of_amount(text: str, *, quoted: bool) -> str | None:
    pattern = _AMOUNT if quoted else _AMOUNT_NUMBER
    if len(text) > _LONGEST_AMOUNT or not pattern.fullmatch(text):
        return 'must be a decimal like "12.50" (a point, no grouping, no sign but -)'
    return None


# ---------------------------------------------------------------------------------------------- the slow way


class _Pairs(list[tuple[str, object]]):
    """A JSON object with all its keys, also those that stand twice."""


class _Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


class _Constant(Exception):
    """NaN or Infinity, which Python's reader knows and JSON does not."""


def _constant(name: str) -> object:
    raise _Constant(name)


def mistakes(body: bytes, *, source: str) -> tuple[Mistake, ...]:
    """All mistakes of a body, up to 50; empty where it has none. `source` is who signed it."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return (Mistake("$", f"is not UTF-8 at byte {error.start}"),)
    if not text.strip():
        return (Mistake("$", "is empty: send one JSON object"),)
    try:
        whole = json.loads(
            text, object_pairs_hook=_Pairs, parse_constant=_constant, parse_int=_Number, parse_float=_Number
        )
    except json.JSONDecodeError as error:
        return (Mistake("$", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"),)
    except _Constant as error:
        return (Mistake("$", f"is not JSON: {error} is no JSON number"),)
    except RecursionError:
        return (Mistake("$", "is nested too deeply"),)
    if not isinstance(whole, _Pairs):
        return (Mistake("$", f"must be a JSON object, is {_shown(whole)}"),)
    found = [*_doubled("$", whole), *_unknown(whole)]
    given = dict(whole)
    for key, fault_of in _RULES.items():
        if key in given:
            found += fault_of(f"$.{key}", given[key])
    found += _together(given, source)
    if not found and b"\\u" in body:
        try:
            _decode(body)
        except msgspec.DecodeError as error:
            if not isinstance(error, msgspec.ValidationError):
                found.append(Mistake("$", f"is not Unicode: {error}"))
        except RecursionError:
            found.append(Mistake("$", "is nested too deeply"))
    return tuple(found[:MOST_MISTAKES])


def _doubled(path: str, pairs: _Pairs) -> list[Mistake]:
    counts = Counter(key for key, _ in pairs)
    return [Mistake(_below(path, key), "stands more than once") for key, n in counts.items() if n > 1]


def _unknown(whole: _Pairs) -> list[Mistake]:
    """The first of them: the nearest known key is dear to find, and there may be as many as the body has room for."""
    found: list[Mistake] = []
    for key in dict(whole):
        if len(found) == MOST_MISTAKES:
            break
        if key not in KEYS:
            near = get_close_matches(key[:64], KEYS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
            found.append(Mistake(_below("$", key), f"is no key here: {hint}"))
    return found


def _together(given: dict[str, object], source: str) -> list[Mistake]:
    """What concerns more than one key."""
    found = [Mistake(f"$.{key}", "is missing") for key in ("event_id", "event_type") if key not in given]
    if "payload" in given and "payload_base64" in given:
        found.append(Mistake("$.payload_base64", "cannot be given beside payload"))
    elif "payload_base64" in given and "content_type" not in given:
        found.append(Mistake("$.content_type", "is missing: payload_base64 needs it"))
    elif "payload" not in given and "payload_base64" not in given:
        found.append(Mistake("$.payload", "is missing: give any JSON value, or payload_base64"))
    if (
        isinstance(signer := given.get("source"), str)
        and not isinstance(signer, _Number)
        and signer not in ("", source)
    ):
        found.append(Mistake("$.source", f"must be who signed, {source}, or left out"))
    amount, currency = given.get("amount"), given.get("currency")
    if ("amount" in given) != ("currency" in given):
        missing = "currency" if "amount" in given else "amount"
        found.append(Mistake(f"$.{missing}", "is missing: amount and currency go together"))
    elif (
        isinstance(amount, str)
        and isinstance(currency, str)
        and currency in EXPONENTS
        and not _amount("", amount)
    ):
        try:
            to_minor(Decimal(amount), currency)
        except MoneyError as error:
            found.append(Mistake("$.amount", str(error)))
    return found


_Rule = Callable[[str, object], list[Mistake]]


def _text(fault_of: Callable[[str], str | None]) -> _Rule:
    def rule(path: str, value: object) -> list[Mistake]:
        if not isinstance(value, str) or isinstance(value, _Number):
            return [Mistake(path, f"must be text, is {_shown(value)}")]
        fault = fault_of(value)
        return [] if fault is None else [Mistake(path, f"{fault}, is {_shown(value)}")]

    return rule


def _matching(pattern: re.Pattern[str], sentence: str, *, least: int = 0, most: int = 10**9) -> _Rule:
    return _text(lambda text: None if least <= len(text) <= most and pattern.fullmatch(text) else sentence)


def _base64(text: str) -> str | None:
    try:
        b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return "must be base64 with its padding"
    return None


def _date(text: str) -> str | None:
    try:
        msgspec.convert(text, date)
    except msgspec.ValidationError:
        return "must be a date like 2026-03-31"
    return None


def _amount(path: str, value: object) -> list[Mistake]:
    if not isinstance(value, str):
        return [Mistake(path, f"must be a decimal, as text or number, is {_shown(value)}")]
    fault = _fault_of_amount(str(value), quoted=not isinstance(value, _Number))
    return [] if fault is None else [Mistake(path, f"{fault}, is {_shown(value)}")]


def _tags(path: str, value: object) -> list[Mistake]:
    if not isinstance(value, _Pairs):
        return [Mistake(path, f"must be an object of texts, is {_shown(value)}")]
    found = _doubled(path, value)
    if len(value) > 16:
        found.append(Mistake(path, f"must have at most 16 tags, has {len(value)}"))
    for name, tag in value[:MOST_MISTAKES]:
        if not 1 <= len(name) <= 64 or not _KEY.fullmatch(name):
            found.append(
                Mistake(_below(path, name), "must have a name of 1 to 64 characters without control ones")
            )
        found += _TAG(_below(path, name), tag)
    return found


_SHORT = "must be text of at most 256 characters without control ones"
_TAG = _matching(_KEY, _SHORT, most=256)
_RULES: Final[dict[str, _Rule]] = {
    "event_id": _matching(EVENT_ID, "must be 1 to 128 of A-Z a-z 0-9 . _ : -"),
    "event_type": _matching(_VISIBLE, "must be 1 to 128 visible ASCII characters, like payment.created"),
    "payload_base64": _text(_base64),
    "content_type": _matching(_CONTENT_TYPE, "must be a media type like application/xml", most=255),
    "routing_key": _matching(_KEY, _SHORT, most=256),
    "target_uri": _matching(
        _URI,
        "must be an http or https address of at most 2048 characters, percent-encoded, without user and fragment",
        most=2048,
    ),
    "tags": _tags,
    "trace_id": _matching(_TRACE, "must be 32 hex digits, not all 0"),
    "business_date": _text(_date),
    "amount": _amount,
    "currency": _text(lambda text: None if text in EXPONENTS else "must be an ISO 4217 currency like EUR"),
    "order_key": _matching(
        _KEY, "must be text of 1 to 256 characters without control ones", least=1, most=256
    ),
    "source": _text(lambda text: None),
}


def _below(path: str, key: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", key):
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key[:64], ensure_ascii=True)}]"


def _shown(value: object) -> str:
    """A value as it was sent, cut short; objects and lists are only named."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case _Number():
            return value if len(value) <= 40 else f"{value[:40]}…"
        case str():
            shown = json.dumps(value[:40], ensure_ascii=True)
            return shown if len(value) <= 40 else f"{shown}…"
        case _Pairs():
            return "an object"
        case _:
            return "a list"

"""The values of jobs.toml: what each may be, and what is wrong with it where it is something else.

Every function raises ValueError with the end of a sentence that begins with the value's place. None shows a
value that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time, timedelta
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import ValidationInfo

from sinks.classify import check_expression
from sinks.signature import key_bytes
from streams.envelope import EVENT_ID, NAME
from streams.money import EXPONENTS

_ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_START = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_SECRET_HEADER = re.compile(r"(?i)authorization|cookie|token|secret|password|key")
_OUR_HEADERS = frozenset(
    {
        "content-encoding", "content-length", "content-type", "connection", "host", "idempotency-key",
        "madeira-attempt", "madeira-signature", "madeira-timestamp", "traceparent", "transfer-encoding",
        "user-agent", "webhook-id", "webhook-signature", "webhook-timestamp", "x-trace-id",
    }
)  # fmt: skip
_MACHINES_OWN = frozenset({"localtime", "posixrules"})
"""Files beside the zones that mean another zone on each machine."""
_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9.-]{1,253})):([0-9]{1,5})")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


@dataclass(frozen=True, slots=True)
class Query:
    """A query file that was read: its name as jobs.toml has it, and its text."""

    file: str
    text: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that stands in an environment variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Validation context: the folder of jobs.toml, where its relative paths begin."""

    path: Path


def checked_name(value: str) -> str:
    """A name of a job, partner or tenant; raises ValueError with the rule."""
    if not NAME.fullmatch(value):
        raise ValueError(f"must be 1 to 64 letters, digits, _ or -, is {value[:80]!r}")
    return value


def job(value: str) -> str:
    """A job's name. Replays are batches of a job of their own, which no other may be."""
    if value == "replay":
        raise ValueError(
            "must not be replay, which is the job of what madeira dead replay sends: choose another"
        )
    return checked_name(value)


def event_type(value: str) -> str:
    """The type of an event: a name that may have dots and colons in it."""
    if not EVENT_ID.fullmatch(value):
        raise ValueError(f"must be 1 to 128 letters, digits, ., _, : or -, is {value[:80]!r}")
    return value


def is_column(value: str) -> bool:
    """Whether a query's result could have a column of that name."""
    return _COLUMN.fullmatch(value) is not None


def variable(value: str) -> str:
    """The name of an environment variable, in capitals."""
    # Never shows the value: somebody may have put the secret itself here.
    if not _ENVIRONMENT_NAME.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable in capitals, like AB_KEY, not its value"
        )
    return value


def variables(value: object) -> tuple[str, ...]:
    """One such name or a list of them."""
    names = value if isinstance(value, list) else [value]
    texts = tuple(variable(name) for name in names if isinstance(name, str))
    if not names or len(texts) < len(names):
        raise ValueError('must be the name of an environment variable or a list of such: write "AB_KEY"')
    if len(set(texts)) < len(texts):
        raise ValueError("names a variable twice: list each once, the newest first")
    return texts


def query(value: object, info: ValidationInfo) -> Query:
    """The file of a query, read; `info.context` says where relative paths begin."""
    if not isinstance(value, str) or not value:
        raise ValueError('must be the path of a .sql file: write query_file = "queries/payment_orders.sql"')
    folder = info.context.path if isinstance(info.context, Folder) else Path()
    path = folder / value
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        there = sorted(file.name for file in path.parent.glob("*.sql")) if path.parent.is_dir() else []
        near = get_close_matches(path.name, there, n=1)
        hint = f"did you mean {Path(value).parent / near[0]}?" if near else f"create {path}"
        raise ValueError(f'names a file that is not there, "{value}": {hint}') from None
    except UnicodeDecodeError:
        raise ValueError(f'names a file that is not UTF-8, "{value}": save it as UTF-8') from None
    except OSError as error:
        raise ValueError(f'names a file that cannot be read, "{value}": {error.strerror}') from None
    if not text.strip():
        raise ValueError(f'names an empty file, "{value}": write a SELECT into it')
    return Query(file=value, text=text)


def start(value: object) -> time:
    """`"01:15"`, a local time."""
    found = _START.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            f'must be a local time from "00:00" to "23:59" in quotes, like "01:15", is {str(value)[:40]!r}'
        )
    return time(int(found[1]), int(found[2]))


def timezone(value: object) -> ZoneInfo:
    """A zone of the tz database."""
    if isinstance(value, str) and value not in _MACHINES_OWN:
        try:
            return ZoneInfo(value)
        except (ValueError, OSError, ZoneInfoNotFoundError):
            pass
    near = get_close_matches(str(value), available_timezones(), n=1, cutoff=0.5)
    raise ValueError(f'must be a zone like "Europe/Prague", is {str(value)[:80]!r}: {_meant(near)}')


def _meant(near: list[str]) -> str:
    return f'did you mean "{near[0]}"?' if near else "see the list of tz database time zones"


def calendar(value: object) -> object:
    """A calendar; weekday numbers are told apart, since programs count them differently."""
    if isinstance(value, int | list) or (isinstance(value, str) and re.fullmatch(r"[\d,\s*-]+", value)):
        raise ValueError(
            "must not be weekday numbers (0 is Monday for some, Sunday for others): "
            'write "weekdays" (Monday to Friday) or "all"'
        )
    return value


def columns(value: object) -> tuple[str, ...]:
    """A column or a list of columns that identifies a row."""
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and is_column(name) for name in names):
        raise ValueError(
            'must be a column or a list of columns: write event_id = ["order_id", "business_date"]'
        )
    if len(set(names)) < len(names):
        raise ValueError("names a column twice: remove one")
    if set(names) == {"business_date"}:
        raise ValueError("must have a column besides business_date, which is the same in every row")
    return tuple(names)


def column(value: str) -> str:
    """A column."""
    if not is_column(value):
        raise ValueError(f"must be the name of a column, is {value[:80]!r}")
    return value


def endpoint(value: str) -> str:
    """An http or https URL without credentials."""
    # Never shows the value: it may carry credentials.
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise ValueError(
            'must be a URL with a valid host and port, like "https://ab.example/payments"'
        ) from None
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0:
        raise ValueError(
            'must begin with https:// or http:// and have a host, like "https://ab.example/payments"'
        )
    if url.username is not None or url.password is not None:
        raise ValueError(
            'must not contain credentials: write headers = { Authorization = { env = "AB_TOKEN" } }'
        )
    if url.fragment or re.search(r"[\s\x00-\x1f\x7f-\U0010ffff]", value):
        raise ValueError("must have no #fragment, spaces or characters outside ASCII: percent-encode them")
    return value


def listen_address(value: str) -> tuple[str, int]:
    """`"127.0.0.1:8700"` or `"[::1]:8700"` as host and port."""
    found = _LISTEN.fullmatch(value)
    if found is None or not 0 < int(found[3]) < 65536:
        raise ValueError(f'must be HOST:PORT, like "127.0.0.1:8700" or "[::1]:8700", is {value[:80]!r}')
    return found[1] or found[2], int(found[3])


def duration(value: object) -> timedelta:
    """`"20s"`, `"5m"`, `"72h"`, `"15ms"`, `"3d"` or whole seconds; raises ValueError with the rule."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
        return timedelta(seconds=value)
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        try:
            return int(found[1]) * _UNITS[found[2]]
        except OverflowError:
            pass
    raise ValueError(f'must be a duration like "20s", "5m", "72h" or whole seconds, is {str(value)[:40]!r}')


def within(low: timedelta, high: timedelta, said: str) -> Callable[[timedelta], timedelta]:
    """A check that a duration lies between two others; `said` is the range in words."""

    def check(value: timedelta) -> timedelta:
        if not low <= value <= high:
            raise ValueError(f"must be {said}, is {shown_duration(value)}")
        return value

    return check


def shown_duration(value: timedelta) -> str:
    """A duration as jobs.toml writes it, in the largest unit that fits."""
    for unit in ("d", "h", "m", "s"):
        if value and not value % _UNITS[unit]:
            return f"{value // _UNITS[unit]}{unit}"
    return f"{value // _UNITS['ms']}ms"


def levels(value: object) -> tuple[timedelta, ...]:
    """The waits between attempts."""
    if not isinstance(value, list) or not value:
        raise ValueError('must be a list of waits, shortest first: write levels = ["1m", "2m", "4m"]')
    levels = tuple(duration(each) for each in value)
    for level in levels:
        if level < timedelta(seconds=1) or level % timedelta(seconds=1):
            raise ValueError(f"must be whole seconds above 0, has {shown_duration(level)}")
        if level > timedelta(days=7):
            raise ValueError(f"must be at most 7d each, has {shown_duration(level)}")
    if list(levels) != sorted(set(levels)):
        raise ValueError("must rise from each to the next: put the shortest first and none twice")
    if len(levels) > 32:
        raise ValueError(f"must be at most 32, are {len(levels)}: the last one repeats by itself")
    return levels


def success(value: str) -> str:
    """A JMESPath expression."""
    try:
        check_expression(value)
    except ValueError as error:
        raise ValueError(
            f"must be a JMESPath expression, like success == `true`, is {value[:80]!r} ({error})"
        ) from None
    return value


def retry_when(value: str) -> str:
    """A JMESPath expression over an answer's status, headers and body."""
    try:
        check_expression(value)
    except ValueError as error:
        raise ValueError(
            f"must be a JMESPath expression, like status == `423`, is {value[:80]!r} ({error})"
        ) from None
    return value


def idempotent(value: bool) -> bool:
    """True; false is for a later version."""
    if not value:
        raise ValueError(
            "= false comes later: for now a send that may have arrived is repeated with the same "
            "Idempotency-Key, so leave out a partner that does not honour it"
        )
    return value


def headers(value: object) -> tuple[tuple[str, str | Variable], ...]:
    """Headers with literal values, or with the variables that hold them."""
    if not isinstance(value, dict):
        raise ValueError('must be a table: write headers = { "X-Client" = "madeira" }')  # noqa: TRY004 - what pydantic collects
    found: list[tuple[str, str | Variable]] = []
    for name, content in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError(
                f"has {str(name)[:40]!r}, which is no name for a header: use letters, digits and -"
            )
        if name.lower() in _OUR_HEADERS:
            raise ValueError(f"has {name}, which Madeira sets itself: remove it")
        match content:
            case {"env": str(named), **rest} if not rest:
                found.append((name, Variable(variable(named))))
            case str() if _SECRET_HEADER.search(name):
                raise ValueError(f'would put a secret into the file: write {name} = {{ env = "AB_TOKEN" }}')
            case str() if _HEADER_VALUE.fullmatch(content):
                found.append((name, content))
            case _:
                raise ValueError(f'has {name}, which must be printable ASCII text or {{ env = "NAME" }}')
    if len({name.lower() for name, _ in found}) < len(found):
        raise ValueError("has a header twice: remove one")
    return tuple(found)


def wrong_key(secret: str) -> str | None:
    """What is wrong with a signing key, without showing it."""
    if secret != secret.strip():
        return "has a space or line break at an end"
    try:
        key_bytes(secret.encode())
    except ValueError:
        return "begins with whsec_ but is not base64 after that"
    return None


def wrong_currency(value: str) -> str | None:
    """What is wrong with a `currency`: capitals are a code, anything else is a column."""
    code = value.upper()
    if code in EXPONENTS:
        return None if value == code else f'is "{value}": write "{code}"'
    if value.isupper() or not is_column(value):
        return f'must be an ISO 4217 code like "CZK" or a column in small letters, is {value[:80]!r}'
    return None

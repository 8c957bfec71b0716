"""The tables of jobs.toml as pydantic reads them: every key with its meaning, default and an example.

Only the shape and each value by itself; what needs two keys or the environment is in `madeira.settings`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
)

from sinks.partner import DEFAULT_LEVELS, SignatureScheme
from streams.envelope import NAME

_ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}")
_START = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_SECRET_HEADER = re.compile(r"(?i)authorization|cookie|token|secret|password|key")
_OUR_HEADERS = frozenset(
    "content-encoding content-length content-type connection host idempotency-key madeira-attempt madeira-signature"
    " madeira-timestamp traceparent transfer-encoding user-agent webhook-id webhook-signature webhook-timestamp"
    " x-trace-id".split()
)
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


def is_column(value: str) -> bool:
    """Whether a query's result could have a column of that name."""
    return _COLUMN.fullmatch(value) is not None


def _variable(value: str) -> str:
    # Never shows the value: somebody may have put the secret itself here.
    if not _ENVIRONMENT_NAME.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable in capitals, like AB_KEY, not its value"
        )
    return value


def _variables(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError('must be the name of an environment variable or a list of such: write "AB_KEY"')
    if len(set(names)) < len(names):
        raise ValueError("names a variable twice: list each once, the newest first")
    return tuple(_variable(name) for name in names)


def _query(value: object, info: ValidationInfo) -> Query:
    if not isinstance(value, str) or not value:
        raise ValueError('must be the path of a .sql file: write query_file = "queries/payment_orders.sql"')
    folder = info.context.path if isinstance(info.context, Folder) else Path()
    path = folder / value
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        there = sorted(file.name for file in path.parent.glob("*.sql")) if path.parent.is_dir() else []
        near = get_close_matches(path.name, there, n=1)
        hint = (
            f"did you mean {Path(value).parent / near[0]}?"
            if near
            else f"create it beside {folder / 'jobs.toml'}"
        )
        raise ValueError(f'names a file that is not there, "{value}": {hint}') from None
    except UnicodeDecodeError:
        raise ValueError(f'names a file that is not UTF-8, "{value}": save it as UTF-8') from None
    except OSError as error:
        raise ValueError(f'names a file that cannot be read, "{value}": {error.strerror}') from None
    if not text.strip():
        raise ValueError(f'names an empty file, "{value}": write a SELECT into it')
    return Query(file=value, text=text)


def _start(value: object) -> time:
    found = _START.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            f'must be a local time from "00:00" to "23:59" in quotes, like "01:15", is {str(value)[:40]!r}'
        )
    return time(int(found[1]), int(found[2]))


def _timezone(value: object) -> ZoneInfo:
    names = available_timezones()
    if not isinstance(value, str) or value not in names:
        near = get_close_matches(str(value), names, n=1, cutoff=0.5)
        raise ValueError(f'must be a zone like "Europe/Prague", is {str(value)[:80]!r}: {_meant(near)}')
    return ZoneInfo(value)


def _meant(near: list[str]) -> str:
    return f'did you mean "{near[0]}"?' if near else "see the list of tz database time zones"


def _calendar(value: object) -> object:
    if isinstance(value, int | list) or (isinstance(value, str) and re.fullmatch(r"[\d,\s*-]+", value)):
        raise ValueError(
            'must not be weekday numbers (0 is Monday for some, Sunday for others): write "weekdays" (Monday to Friday)'
            ' or "all"'
        )
    return value


def _columns(value: object) -> tuple[str, ...]:
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


def _column(value: str) -> str:
    if not is_column(value):
        raise ValueError(f"must be the name of a column, is {value[:80]!r}")
    return value


def _endpoint(value: str) -> str:
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


def _within(low: timedelta, high: timedelta, said: str) -> Callable[[timedelta], timedelta]:
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


def _levels(value: object) -> tuple[timedelta, ...]:
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


def _success(value: str) -> str:
    try:
        jmespath.compile(value)
    except JMESPathError as error:
        said = str(error).splitlines()[0].rstrip(":.")
        raise ValueError(
            f"must be a JMESPath expression, like success == `true`, is {value[:80]!r} ({said})"
        ) from None
    return value


def _idempotent(value: bool) -> bool:  # noqa: FBT001 - pydantic calls it with the value alone
    if not value:
        raise ValueError(
            "= false comes later: for now a send that may have arrived is repeated with the same Idempotency-Key, so "
            "leave out a partner that does not honour it"
        )
    return value


def _headers(value: object) -> tuple[tuple[str, str | Variable], ...]:
    if not isinstance(value, dict):
        raise ValueError('must be a table: write headers = { "X-Client" = "madeira" }')
    headers: list[tuple[str, str | Variable]] = []
    for name, content in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError(
                f"has {str(name)[:40]!r}, which is no name for a header: use letters, digits and -"
            )
        if name.lower() in _OUR_HEADERS:
            raise ValueError(f"has {name}, which Madeira sets itself: remove it")
        match content:
            case {"env": str(variable), **rest} if not rest:
                headers.append((name, Variable(_variable(variable))))
            case str() if _SECRET_HEADER.search(name):
                raise ValueError(f'would put a secret into the file: write {name} = {{ env = "AB_TOKEN" }}')
            case str() if _HEADER_VALUE.fullmatch(content):
                headers.append((name, content))
            case _:
                raise ValueError(f'has {name}, which must be printable ASCII text or {{ env = "NAME" }}')
    if len({name.lower() for name, _ in headers}) < len(headers):
        raise ValueError("has a header twice: remove one")
    return tuple(headers)


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)


Name = Annotated[str, AfterValidator(checked_name)]
VariableName = Annotated[str, AfterValidator(_variable)]
Column = Annotated[str, AfterValidator(_column)]


class SourceTable(_Table):
    """Where a job's rows come from."""

    dsn_env: VariableName = Field(
        description="Environment variable with the PostgreSQL connection string of the source.",
        examples=['"ACCOUNTING_DSN"'],
    )
    query_file: Annotated[Query, PlainValidator(_query)] = Field(
        description="File with one SELECT, relative to jobs.toml. `:business_date` stands for the business date.",
        examples=['"queries/payment_orders.sql"'],
    )


class JobTable(_Table):
    """One `[[jobs]]`."""

    id: Name = Field(
        description="The job's name. Its rows have it as their source, so a change makes every row new.",
        examples=['"payment-orders"'],
    )
    start: Annotated[time, PlainValidator(_start)] = Field(
        description="Local time of `timezone` at which a business date's run begins.", examples=['"01:15"']
    )
    timezone: Annotated[ZoneInfo, PlainValidator(_timezone)] = Field(
        description="Zone of the tz database.", examples=['"Europe/Prague"']
    )
    calendar: Annotated[Literal["all", "weekdays"], BeforeValidator(_calendar)] = Field(
        default="all", description="Business dates: every day, or Monday to Friday.", examples=['"weekdays"']
    )
    source: SourceTable = Field(
        description="Where the rows come from.",
        examples=['{ dsn_env = "ACCOUNTING_DSN", query_file = "queries/payment_orders.sql" }'],
    )
    event_id: Annotated[tuple[str, ...], PlainValidator(_columns)] = Field(
        description="Column, or columns joined by `:`, that identify a row for ever. `business_date` may be one of "
        "them: then the same row is a new payment on every business date.",
        examples=['["order_id", "business_date"]'],
    )
    partner: str = Field(
        description="A configured partner, or the column that names one in each row.", examples=['"bank_to"']
    )
    amount: Column | None = Field(
        default=None,
        description="Column with the exact amount (numeric); needs `currency`.",
        examples=['"amount"'],
    )
    currency: str | None = Field(
        default=None,
        description="ISO 4217 code, or the column that holds one; needs `amount`.",
        examples=['"CZK"'],
    )
    event_type: Name | None = Field(
        default=None,
        description="Type that the partner's events carry; the job's id if absent.",
        examples=['"payment"'],
    )
    order_key: Column | None = Field(
        default=None, description="Column kept as the event's order key.", examples=['"account_id"']
    )


class PartnerTable(_Table):
    """One `[partners.<name>]`."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        description="URL that each event is posted to; http or https, without credentials.",
        examples=['"https://ab.example/payments"'],
    )
    qps: int = Field(
        gt=0,
        le=100_000,
        description="Most sends in any second, over all workers, retries included.",
        examples=["50"],
    )
    tenant: Name = Field(
        default="default", description="Tenant that the partner belongs to.", examples=['"default"']
    )
    signing_key_env: Annotated[tuple[str, ...], PlainValidator(_variables)] = Field(
        default=(),
        description="Environment variable with the signing key, or a list while a key rotates. Absent: unsigned.",
        examples=['"AB_KEY"'],
    )
    signature: Literal["madeira", "standard-webhooks"] = Field(
        default=SignatureScheme.MADEIRA.value,
        description="How a request is signed.",
        examples=['"standard-webhooks"'],
    )
    success: Annotated[str, AfterValidator(_success)] | None = Field(
        default=None,
        description="JMESPath over the body of a 2xx answer; only `true` is success. Absent: any 2xx is.",
        examples=['"success == `true`"'],
    )
    retry_codes: list[str] = Field(
        default_factory=list,
        description="Values of the answer's `code` with which a 2xx that is no success is tried again.",
        examples=['["TRY_LATER"]'],
    )
    already_accepted: list[str] = Field(
        default_factory=list,
        description="Values of a 409 answer's `code` that say an earlier attempt was accepted.",
        examples=['["DUPLICATE"]'],
    )
    timeout: Annotated[
        timedelta,
        PlainValidator(duration),
        AfterValidator(_within(timedelta(milliseconds=100), timedelta(minutes=10), '"100ms" to "10m"')),
    ] = Field(
        default=timedelta(seconds=20),
        description="Longest time for one request, body included.",
        examples=['"20s"'],
    )
    guard: Annotated[
        timedelta,
        PlainValidator(duration),
        AfterValidator(_within(timedelta(milliseconds=1), timedelta(milliseconds=500), '"1ms" to "500ms"')),
    ] = Field(
        default=timedelta(milliseconds=15),
        description="Unevenness of clocks and network that the pace allows for; costs this share of a second.",
        examples=['"15ms"'],
    )
    lateness: Annotated[
        timedelta,
        PlainValidator(duration),
        AfterValidator(_within(timedelta(milliseconds=1), timedelta(milliseconds=500), '"1ms" to "500ms"')),
    ] = Field(
        default=timedelta(milliseconds=8),
        description="A send later than this after its slot gives the slot up. Below `guard`.",
        examples=['"8ms"'],
    )
    levels: Annotated[tuple[timedelta, ...], PlainValidator(_levels)] = Field(
        default=DEFAULT_LEVELS,
        description="Waits between attempts, whole seconds, rising; the last one repeats.",
        examples=['["1m", "2m", "4m", "8m", "16m", "30m"]'],
    )
    max_attempts: int = Field(
        default=12, gt=0, le=1_000, description="Attempts after which a delivery is dead.", examples=["12"]
    )
    max_age: Annotated[
        timedelta,
        PlainValidator(duration),
        AfterValidator(_within(timedelta(seconds=1), timedelta(days=365), '"1s" to "365d"')),
    ] = Field(
        default=timedelta(hours=72),
        description="Age after which a delivery is not retried.",
        examples=['"72h"'],
    )
    unknown_retries: int = Field(
        default=3, ge=0, le=1_000, description="Retries after outcomes that nobody can read.", examples=["3"]
    )
    max_in_flight: int = Field(
        default=100,
        gt=0,
        le=100_000,
        description="Most requests without an answer, over all workers.",
        examples=["100"],
    )
    batch_floor_percent: int = Field(
        default=20,
        ge=0,
        le=100,
        description="Share of the slots that batch rows keep beside live events.",
        examples=["20"],
    )
    idempotent: Annotated[bool, AfterValidator(_idempotent)] = Field(
        default=True,
        description="The partner takes an Idempotency-Key twice as once. `false` comes in a later version.",
        examples=["true"],
    )
    allow_private: bool = Field(
        default=False, description="Allow private, loopback and link-local addresses.", examples=["true"]
    )
    headers: Annotated[tuple[tuple[str, str | Variable], ...], PlainValidator(_headers)] = Field(
        default=(),
        description='Headers of every request; secrets as `{ env = "NAME" }`.',
        examples=['{ "X-Client" = "madeira", Authorization = { env = "AB_TOKEN" } }'],
    )

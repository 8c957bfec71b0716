"""The tables of jobs.toml as pydantic reads them: every key with its meaning, default and an example.

Only the shape and each value by itself; what needs two keys or the environment is in `madeira.configuration`.
"""

from __future__ import annotations

from datetime import time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from madeira import live, values
from pipelines.live_source import Durability
from sinks.partner import DEFAULT_LEVELS, SignatureScheme


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)


Name = Annotated[str, AfterValidator(values.checked_name)]
VariableName = Annotated[str, AfterValidator(values.variable)]
EventType = Annotated[str, AfterValidator(values.event_type)]
Column = Annotated[str, AfterValidator(values.column)]


class SourceTable(_Table):
    """Where a job's rows come from."""

    dsn_env: VariableName = Field(
        description="Environment variable with the PostgreSQL connection string of the source.",
        examples=['"ACCOUNTING_DSN"'],
    )
    query_file: Annotated[values.Query, PlainValidator(values.query)] = Field(
        description="File with one SELECT, relative to jobs.toml; `:business_date` in it is the date.",
        examples=['"queries/payment_orders.sql"'],
    )


class JobTable(_Table):
    """One `[[jobs]]`."""

    id: Annotated[str, AfterValidator(values.job)] = Field(
        description="The job's name. Its rows have it as their source, so a change makes every row new.",
        examples=['"payment-orders"'],
    )
    start: Annotated[time, PlainValidator(values.start)] = Field(
        description="Local time of `timezone` at which a business date's run begins.", examples=['"01:15"']
    )
    timezone: Annotated[ZoneInfo, PlainValidator(values.timezone)] = Field(
        description="Zone of the tz database.", examples=['"Europe/Prague"']
    )
    calendar: Annotated[Literal["all", "weekdays"], BeforeValidator(values.calendar)] = Field(
        default="all", description="Business dates: every day, or Monday to Friday.", examples=['"weekdays"']
    )
    source: SourceTable = Field(
        description="Where the rows come from.",
        examples=['{ dsn_env = "ACCOUNTING_DSN", query_file = "queries/payment_orders.sql" }'],
    )
    event_id: Annotated[tuple[str, ...], PlainValidator(values.columns)] = Field(
        description="Column, or columns joined by `:`, that identify a row for ever. `business_date` may be "
        "one of them: then the same row is a new payment on every business date.",
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
    event_type: EventType | None = Field(
        default=None,
        description="Type that the partner's events carry; the job's id if absent.",
        examples=['"payment"'],
    )
    order_key: Column | None = Field(
        default=None, description="Column kept as the event's order key.", examples=['"account_id"']
    )


class PartnerTable(_Table):
    """One `[partners.<name>]`."""

    endpoint: Annotated[str, AfterValidator(values.endpoint)] = Field(
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
    signing_key_env: Annotated[tuple[str, ...], PlainValidator(values.variables)] = Field(
        default=(),
        description="Variable with the signing key, or a list while it rotates. Absent: unsigned.",
        examples=['"AB_KEY"'],
    )
    signature: Literal["madeira", "standard-webhooks"] = Field(
        default=SignatureScheme.MADEIRA.value,
        description="How a request is signed.",
        examples=['"standard-webhooks"'],
    )
    success: Annotated[str, AfterValidator(values.success)] | None = Field(
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
        description="Values of the answer's `code` that say an earlier attempt was accepted; `409` means any 409.",
        examples=['["DUPLICATE"]'],
    )
    retry_when: Annotated[str, AfterValidator(values.retry_when)] | None = Field(
        default=None,
        description="JMESPath over `{status, headers, body}` of any answer, asked first: `true` means try again.",
        examples=['"status == `423`"'],
    )
    retry_after_max: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(seconds=1), timedelta(days=7), '"1s" to "7d"')),
    ] = Field(
        default=timedelta(hours=1),
        description="Longest wait that a `Retry-After` of the partner can ask for.",
        examples=['"1h"'],
    )
    breaker_failures: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Failures in a row after which only probes are sent; 0 switches that off.",
        examples=["20"],
    )
    breaker_probe: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(seconds=1), timedelta(days=1), '"1s" to "1d"')),
    ] = Field(
        default=timedelta(seconds=5),
        description="Wait before the first probe; twice as long before each further one.",
        examples=['"5s"'],
    )
    breaker_probe_max: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(seconds=1), timedelta(days=1), '"1s" to "1d"')),
    ] = Field(
        default=timedelta(seconds=60),
        description="Longest wait before a probe. Not below `breaker_probe`.",
        examples=['"60s"'],
    )
    timeout: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(milliseconds=100), timedelta(minutes=10), '"100ms" to "10m"')),
    ] = Field(
        default=timedelta(seconds=20),
        description="Longest time for one request, body included.",
        examples=['"20s"'],
    )
    guard: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(
            values.within(timedelta(milliseconds=1), timedelta(milliseconds=500), '"1ms" to "500ms"')
        ),
    ] = Field(
        default=timedelta(milliseconds=15),
        description="Unevenness of clocks and network that the pace allows for: 15ms cost 1.5 %.",
        examples=['"15ms"'],
    )
    lateness: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(
            values.within(timedelta(milliseconds=1), timedelta(milliseconds=500), '"1ms" to "500ms"')
        ),
    ] = Field(
        default=timedelta(milliseconds=8),
        description="A send later than this after its slot gives the slot up. Below `guard`.",
        examples=['"8ms"'],
    )
    levels: Annotated[tuple[timedelta, ...], PlainValidator(values.levels)] = Field(
        default=DEFAULT_LEVELS,
        description="Waits between attempts, whole seconds, rising; the last one repeats.",
        examples=['["1m", "2m", "4m", "8m", "16m", "30m"]'],
    )
    max_attempts: int = Field(
        default=12, gt=0, le=1_000, description="Attempts after which a delivery is dead.", examples=["12"]
    )
    max_age: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(seconds=1), timedelta(days=365), '"1s" to "365d"')),
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
    idempotent: Annotated[bool, AfterValidator(values.idempotent)] = Field(
        default=True,
        description="The partner takes an Idempotency-Key twice as once. `false` comes in a later version.",
        examples=["true"],
    )
    allow_private: bool = Field(
        default=False,
        description="Allow private and loopback addresses; link-local and metadata ones never are.",
        examples=["true"],
    )
    headers: Annotated[tuple[tuple[str, str | values.Variable], ...], PlainValidator(values.headers)] = Field(
        default=(),
        description='Headers of every request; secrets as `{ env = "NAME" }`.',
        examples=['{ "X-Client" = "madeira", Authorization = { env = "AB_TOKEN" } }'],
    )
    allowed_hosts: Annotated[tuple[str, ...], PlainValidator(live.hosts)] = Field(
        default=(),
        description="Hosts besides the endpoint's own that a `target_uri` may name; without a port the scheme's own.",
        examples=['["alt.example", "alt.example:8443"]'],
    )
    tags: Annotated[tuple[tuple[str, str], ...], PlainValidator(live.tags)] = Field(
        default=(),
        description="Select the workers that send to it: `madeira work --tags region=sh`.",
        examples=['{ region = "sh" }'],
    )


class LiveSourceTable(_Table):
    """One `[sources.<name>]`."""

    key_env: Annotated[tuple[str, ...], PlainValidator(values.variables)] = Field(
        description="Variable with the key that signs its requests, or a list while it rotates, newest first.",
        examples=['"SHOP_KEY"'],
    )
    tenant: Name = Field(
        default="default",
        description="Tenant that the source belongs to; its events reach partners of this one only.",
        examples=['"default"'],
    )
    durability: Literal["postgres", "redis"] = Field(
        default=Durability.POSTGRES.value,
        description="What a 202 means: committed in PostgreSQL, or taken by Redis.",
        examples=['"redis"'],
    )
    rate: int = Field(
        default=1_000,
        gt=0,
        le=1_000_000,
        description="Most events a second, over all processes of one `madeira serve`.",
        examples=["1000"],
    )
    max_body: int = Field(
        default=262_144,
        ge=1_024,
        le=16 * 1024 * 1024,
        description="Most bytes of one event.",
        examples=["262144"],
    )
    remember: Annotated[
        timedelta,
        PlainValidator(values.duration),
        AfterValidator(values.within(timedelta(minutes=1), timedelta(days=30), '"1m" to "30d"')),
    ] = Field(
        default=timedelta(hours=6),
        description="How long Redis knows the id of an accepted event; PostgreSQL knows it for ever.",
        examples=['"6h"'],
    )


class RouteTable(_Table):
    """One `[[routes]]`."""

    name: Name | None = Field(
        default=None,
        description="What messages call it; its place in the file, from 1, if absent.",
        examples=['"payments"'],
    )
    tenant: Name = Field(
        default="default", description="Tenant whose events it takes.", examples=['"default"']
    )
    source: Annotated[tuple[str, ...], PlainValidator(live.names)] = Field(
        default=(), description="Source, or a list; any if absent.", examples=['"shop"']
    )
    event_type: Annotated[tuple[str, ...], PlainValidator(live.event_types)] = Field(
        default=(),
        description="Pattern of the event's type, or a list of which one must fit.",
        examples=['"payment.*"'],
    )
    routing_key: Annotated[tuple[str, ...], PlainValidator(live.routing_keys)] = Field(
        default=(),
        description="Pattern of the event's routing key, or a list of which one must fit.",
        examples=['"AB"'],
    )
    tags: Annotated[tuple[tuple[str, str], ...], PlainValidator(live.tags)] = Field(
        default=(), description="Tags that the event must all have.", examples=['{ region = "sh" }']
    )
    to: Annotated[tuple[str, ...], PlainValidator(live.recipients)] = Field(
        description="Partners of the tenant; `{routing_key}` is the partner that the event names.",
        examples=['["AB"]'],
    )
    body: Annotated[str, AfterValidator(live.expression)] | None = Field(
        default=None,
        description="JMESPath over the payload that makes the body. Absent: the bytes that came in.",
        examples=['"{order: id, total: amount}"'],
    )
    target_uri: Annotated[str, AfterValidator(live.template)] | None = Field(
        default=None,
        description="Template of the address, in place of the partner's endpoint.",
        examples=['"https://ab.example/pay/{routing_key}"'],
    )

"""A job: where a night's rows come from and how a row becomes a delivery."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Job:
    """One `[[jobs]]` of jobs.toml, without its times (`scheduler.jobs.Schedule` has those).

    `dsn` is the source's connection string, empty when the variable `dsn_env` is not set; it never shows in
    a repr. `query` is the text of `query_file`; `:business_date` in it stands for the business date.
    `event_id` are the columns whose values, joined by `:`, identify a row; `business_date` may be one of
    them. `partner` is a column when `partner_is_column`, else one of `partners`; `currency` likewise a
    column or an ISO 4217 code. `amount` and `currency` are both given or both None. `partners` are the
    names of all configured ones.
    """

    id: str
    dsn: str = field(repr=False)
    query: str
    query_file: str
    event_id: tuple[str, ...]
    partner: str
    partner_is_column: bool
    amount: str | None
    currency: str | None
    currency_is_column: bool
    event_type: str
    order_key: str | None
    partners: frozenset[str]
    dsn_env: str = ""

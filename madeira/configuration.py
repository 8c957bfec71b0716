"""jobs.toml, parsed once into frozen values, with all mistakes told at once.

A secret is named in the file and read from the environment here. One that is not set is a warning: `madeira
check` runs on machines that hold no secrets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from madeira.mistakes import Mistakes, lines_of, listed, nearest, unknown_key
from madeira.routes import Known, check_route, tenant_of
from madeira.tables import JobTable, LiveSourceTable, PartnerTable, RouteTable
from madeira.values import Folder, Variable, duration, is_column, shown_duration, wrong_currency, wrong_key
from pipelines.job import Job
from pipelines.live_source import Durability, LiveSource
from pipelines.route import Route
from scheduler.calendar import Calendar
from scheduler.jobs import Schedule, ScheduledJob
from sinks.address import refusal
from sinks.partner import Partner, SignatureScheme
from streams.envelope import NAME
from streams.errors import ConfigurationError
from streams.money import EXPONENTS

_TABLES = ("jobs", "partners", "sources", "routes")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What jobs.toml says. `unset_secrets` are sentences.

    `unready_partners` lack a secret, of the variables named there: what is sent to them would be refused for good,
    so nothing may be.
    `unready_sources` lack one, too: what they post cannot be told from a forgery.
    """

    jobs: tuple[ScheduledJob, ...]
    partners: dict[str, Partner]
    unset_secrets: tuple[str, ...]
    unready_partners: dict[str, tuple[str, ...]]
    sources: dict[str, LiveSource] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    unready_sources: frozenset[str] = frozenset()


def parse(text: str, *, path: str, folder: Path, environ: Mapping[str, str]) -> Configuration:
    """Parse the text of jobs.toml. `path` is what messages call it; query files are relative to `folder`.

    Raises ConfigurationError with every mistake, each with its line and fix. No message shows a secret's
    value.
    """
    try:
        root: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError((_syntax_mistake(path, error),)) from None
    except RecursionError:
        raise ConfigurationError((f"{path}: is nested too deeply to be meant: write plain tables",)) from None
    return _Reader(Mistakes(path, lines_of(text)), folder, environ).read(root)


class _Reader:
    """One reading of one file: collects mistakes and unset secrets on the way."""

    def __init__(self, mistakes: Mistakes, folder: Path, environ: Mapping[str, str]) -> None:
        self._mistakes = mistakes
        self._folder = Folder(folder)
        self._environ = environ
        self._unset: dict[str, list[str]] = {}
        self._unready: dict[str, tuple[str, ...]] = {}

    def read(self, root: Mapping[str, object]) -> Configuration:
        for key in root:
            if key not in _TABLES:
                self._mistakes.add((key,), unknown_key(key, _TABLES))
        partners = {partner.name: partner for partner in self._partners(root.get("partners", {}))}
        names = frozenset(_tables(root, "partners"))
        jobs = tuple(self._jobs(root.get("jobs", []), names))
        known = Known(
            source_tenants={name: tenant_of(raw) for name, raw in _tables(root, "sources").items()},
            partner_tenants={name: tenant_of(raw) for name, raw in _tables(root, "partners").items()},
            jobs=_job_ids(root),
            complete=partners,
        )
        sources = {source.name: source for source in self._sources(root.get("sources", {}), known.jobs)}
        routes = tuple(self._routes(root.get("routes", []), known))
        if self._mistakes.found:
            raise ConfigurationError(self._mistakes.found)
        return Configuration(
            jobs=jobs,
            partners=partners,
            unset_secrets=tuple(
                f"{variable} is not set (for {listed(places)}): set it before it is needed"
                for variable, places in self._unset.items()
            ),
            unready_partners=self._unready,
            sources=sources,
            routes=routes,
            unready_sources=frozenset(name for name, source in sources.items() if not source.keys),
        )

    def _partners(self, tables: object) -> Iterator[Partner]:
        if not isinstance(tables, dict):
            self._mistakes.add(
                ("partners",), 'must be tables: write [partners.AB] with endpoint = "…" and qps = 50'
            )
            return
        for name, raw in tables.items():
            path = ("partners", name)
            if not NAME.fullmatch(name):
                self._mistakes.add(path, "must have a name of 1 to 64 letters, digits, _ or -")
            if isinstance(raw, dict):
                self._check_partner(path, raw)
            table = self._validated(path, raw, PartnerTable)
            if table is not None:
                yield self._partner(name, table)

    def _partner(self, name: str, table: PartnerTable) -> Partner:
        path = ("partners", name)
        keys = [self._secret(variable, path, "signing_key_env") for variable in table.signing_key_env]
        headers = [
            (
                header,
                self._secret(content.name, path, "headers") if isinstance(content, Variable) else content,
            )
            for header, content in table.headers
        ]
        used = [
            *table.signing_key_env,
            *(each.name for _, each in table.headers if isinstance(each, Variable)),
        ]
        if unset := tuple(variable for variable in dict.fromkeys(used) if variable in self._unset):
            self._unready[name] = unset
        return Partner(
            name=name,
            endpoint=table.endpoint,
            qps=table.qps,
            tenant=table.tenant,
            signing_keys=tuple(key.encode() for key in keys if key is not None),
            signature=SignatureScheme(table.signature),
            success=table.success,
            retry_codes=frozenset(table.retry_codes),
            already_accepted=frozenset(table.already_accepted),
            retry_when=table.retry_when,
            retry_after_max=table.retry_after_max,
            breaker_failures=table.breaker_failures,
            breaker_probe=table.breaker_probe,
            breaker_probe_max=table.breaker_probe_max,
            timeout=table.timeout,
            guard=table.guard,
            lateness=table.lateness,
            levels=table.levels,
            max_attempts=table.max_attempts,
            max_age=table.max_age,
            unknown_retries=table.unknown_retries,
            max_in_flight=table.max_in_flight,
            batch_floor_percent=table.batch_floor_percent,
            allow_private=table.allow_private,
            allowed_hosts=table.allowed_hosts,
            tags=table.tags,
            headers=tuple((header, content) for header, content in headers if content is not None),
        )

    def _check_partner(self, path: tuple[str, str], raw: Mapping[str, object]) -> None:
        """What needs two keys, on the raw table, so that a mistake elsewhere in it hides nothing."""
        guard, lateness = (
            _duration(raw.get(key, PartnerTable.model_fields[key].default)) for key in ("guard", "lateness")
        )
        if guard is not None and lateness is not None and lateness >= guard:
            self._mistakes.add(
                (*path, "lateness"),
                f"must be below guard ({shown_duration(guard)}), is {shown_duration(lateness)}: "
                "a send that is late by the whole guard breaks the promised rate",
            )
        first, longest = (
            _duration(raw.get(key, PartnerTable.model_fields[key].default))
            for key in ("breaker_probe", "breaker_probe_max")
        )
        if first is not None and longest is not None and longest < first:
            self._mistakes.add(
                (*path, "breaker_probe_max"),
                f"must not be below breaker_probe ({shown_duration(first)}), is {shown_duration(longest)}",
            )
        allow_private = raw.get("allow_private") is True
        endpoint, hosts = raw.get("endpoint"), raw.get("allowed_hosts")
        if isinstance(endpoint, str):
            self._check_address((*path, "endpoint"), endpoint, allow_private=allow_private)
        for host in hosts if isinstance(hosts, list) else ():
            if isinstance(host, str):
                self._check_address((*path, "allowed_hosts"), f"//{host}", allow_private=allow_private)

    def _check_address(self, path: tuple[str, str, str], url: str, *, allow_private: bool) -> None:
        """A literal address that the guard would refuse at each send is told now; names are resolved then."""
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return  # no URL: told by the table
        address = "127.0.0.1" if host == "localhost" else host
        why = refusal(address, allow_private=allow_private)
        if why is None or why == refusal("", allow_private=False):
            return
        fix = "write allow_private = true if that is meant"
        if refusal(address, allow_private=True) is not None:
            fix = "use another, this one is never sent to"
        self._mistakes.add(path, f"has a {why} address ({host}): {fix}")

    def _jobs(self, tables: object, partners: frozenset[str]) -> Iterator[ScheduledJob]:
        if not isinstance(tables, list):
            self._mistakes.add(("jobs",), "must be an array of tables: write [[jobs]] with two brackets")
            return
        first_of: dict[str, int] = {}
        for position, raw in enumerate(tables):
            path = ("jobs", position)
            job_id = raw.get("id") if isinstance(raw, dict) else None
            if isinstance(job_id, str) and NAME.fullmatch(job_id):
                if job_id in first_of:
                    self._mistakes.add(
                        (*path, "id"),
                        f'is taken: job number {first_of[job_id]} is "{job_id}" too, rename one',
                    )
                else:
                    self._mistakes.names[path] = f"jobs.{job_id}"
                first_of.setdefault(job_id, position + 1)
            if isinstance(raw, dict):
                self._check_together(path, raw, partners)
            table = self._validated(path, raw, JobTable)
            if table is not None:
                yield self._job(path, table, partners)

    def _check_together(
        self, path: tuple[str, int], raw: Mapping[str, object], partners: frozenset[str]
    ) -> None:
        """What needs two keys, on the raw table, so that a mistake elsewhere in it hides nothing."""
        for given, missing, example in (("amount", "currency", '"CZK"'), ("currency", "amount", '"amount"')):
            if given in raw and missing not in raw:
                self._mistakes.add((*path, given), f"needs {missing} beside it: write {missing} = {example}")
        partner = raw.get("partner")
        if isinstance(partner, str) and partner not in partners:
            same = [name for name in partners if name.lower() == partner.lower()]
            if same:
                self._mistakes.add((*path, "partner"), f'is "{partner}": did you mean the partner {same[0]}?')
            elif not is_column(partner):
                self._mistakes.add(
                    (*path, "partner"),
                    f"must be a configured partner or a column, is {partner[:80]!r}: "
                    f"{nearest(partner, sorted(partners))}",
                )
        currency = raw.get("currency")
        if isinstance(currency, str) and (wrong := wrong_currency(currency)):
            self._mistakes.add((*path, "currency"), wrong)

    def _job(self, path: tuple[str, int], table: JobTable, partners: frozenset[str]) -> ScheduledJob:
        dsn = self._secret(table.source.dsn_env, path, "source.dsn_env")
        job = Job(
            id=table.id,
            dsn=dsn or "",
            query=table.source.query_file.text,
            query_file=table.source.query_file.file,
            event_id=table.event_id,
            partner=table.partner,
            partner_is_column=table.partner not in partners,
            amount=table.amount,
            currency=table.currency,
            currency_is_column=table.currency is not None and table.currency not in EXPONENTS,
            event_type=table.event_type or table.id,
            order_key=table.order_key,
            partners=partners,
            dsn_env=table.source.dsn_env,
        )
        schedule = Schedule(start=table.start, timezone=table.timezone, calendar=Calendar(table.calendar))
        return ScheduledJob(job=job, schedule=schedule)

    def _sources(self, tables: object, jobs: frozenset[str]) -> Iterator[LiveSource]:
        if not isinstance(tables, dict):
            self._mistakes.add(("sources",), 'must be tables: write [sources.shop] with key_env = "SHOP_KEY"')
            return
        for name, raw in tables.items():
            path = ("sources", name)
            if not NAME.fullmatch(name):
                self._mistakes.add(path, "must have a name of 1 to 64 letters, digits, _ or -")
            if name in jobs:
                self._mistakes.add(
                    path, "has the name of a job, whose rows would be taken for its events: rename one"
                )
            table = self._validated(path, raw, LiveSourceTable)
            if table is not None:
                yield self._source(name, table)

    def _source(self, name: str, table: LiveSourceTable) -> LiveSource:
        keys = [self._secret(variable, ("sources", name), "key_env") for variable in table.key_env]
        return LiveSource(
            name=name,
            # One that is missing makes all of them: its events would be refused as if they were forged.
            keys=() if None in keys else tuple(key.encode() for key in keys if key is not None),
            tenant=table.tenant,
            durability=Durability(table.durability),
            rate=table.rate,
            max_body=table.max_body,
            remember=table.remember,
        )

    def _routes(self, tables: object, known: Known) -> Iterator[Route]:
        if not isinstance(tables, list):
            self._mistakes.add(("routes",), "must be an array of tables: write [[routes]] with two brackets")
            return
        first_of: dict[str, int] = {}
        for position, raw in enumerate(tables):
            path = ("routes", position)
            given = raw.get("name") if isinstance(raw, dict) else None
            name = given if isinstance(given, str) else str(position + 1)
            if name in first_of:
                self._mistakes.add(
                    (*path, "name"),
                    f'is taken: route number {first_of[name]} is called "{name}" too, rename one',
                )
            elif isinstance(given, str) and NAME.fullmatch(given):
                self._mistakes.names[path] = f"routes.{given}"
            first_of.setdefault(name, position + 1)
            if isinstance(raw, dict):
                check_route(self._mistakes, path, raw, known)
            table = self._validated(path, raw, RouteTable)
            if table is not None:
                yield Route(
                    name=name,
                    to=table.to,
                    tenant=table.tenant,
                    sources=table.source,
                    event_types=table.event_type,
                    routing_keys=table.routing_key,
                    tags=table.tags,
                    body=table.body,
                    target_uri=table.target_uri,
                )

    def _secret(self, variable: str, path: tuple[str, str | int], key: str) -> str | None:
        """The variable's value; None, and noted, when it is not set or empty."""
        value = self._environ.get(variable)
        if not value:
            self._unset.setdefault(variable, []).append(f"{self._mistakes.called(path)}.{key}")
            return None
        if key in {"signing_key_env", "key_env"} and (wrong := wrong_key(value)):
            self._mistakes.add((*path, key), f"takes {variable}, whose value {wrong}: set it anew")
        if key == "headers" and not (value.isascii() and value.isprintable()):
            self._mistakes.add(
                (*path, key), f"takes {variable}, whose value is not printable ASCII: set it anew"
            )
        return value

    def _validated(self, path: tuple[str, str | int], raw: object, model: type[_Model]) -> _Model | None:
        try:
            return model.model_validate(raw, context=self._folder)
        except ValidationError as error:
            self._mistakes.add_invalid(path, error, model)
            return None


def _tables(root: Mapping[str, object], key: str) -> Mapping[str, object]:
    """The tables of that kind by name, those with a mistake, too: who names one of them is right."""
    tables = root.get(key)
    return tables if isinstance(tables, dict) else {}


def _job_ids(root: Mapping[str, object]) -> frozenset[str]:
    jobs = root.get("jobs")
    ids = [raw.get("id") for raw in jobs if isinstance(raw, dict)] if isinstance(jobs, list) else []
    return frozenset(each for each in ids if isinstance(each, str))


def _duration(value: object) -> timedelta | None:
    """None for what is no duration, which the table tells."""
    try:
        return duration(value) if not isinstance(value, timedelta) else value
    except ValueError:
        return None


def _syntax_mistake(path: str, error: tomllib.TOMLDecodeError) -> str:
    said, _, place = str(error).partition(" (at ")
    line = place.removeprefix("line ").split(",")[0]
    where = f"{path}:{line}" if line.isdecimal() else path
    at = place.rstrip(")")
    return f"{where}: is not TOML ({said}, at {at}): text needs quotes, and a key stands once in its table"

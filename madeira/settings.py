"""Settings: the environment and jobs.toml, parsed once into frozen values, with all mistakes told at once.

A secret is named in jobs.toml and read from the environment here. One that is not set is a warning: `madeira check`
runs on machines that hold no secrets. Whoever would need it looks at `unready_partners` and `Job.dsn`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from iso4217 import Currency
from pydantic import BaseModel, ValidationError

from madeira.mistakes import Mistakes, lines_of, unknown_key
from madeira.tables import Folder, JobTable, PartnerTable, Variable, is_column, shown_duration
from pipelines.job import Job
from scheduler.calendar import Calendar
from scheduler.jobs import Schedule, ScheduledJob
from sinks.partner import Partner, SignatureScheme
from streams import checkpoint
from streams.envelope import NAME
from streams.errors import ConfigurationError

ENVIRONMENT: dict[str, str] = {
    "MADEIRA_DATABASE_URL": "The record: postgresql://… Absent: a private PostgreSQL under MADEIRA_VAR.",
    "MADEIRA_REDIS_URL": "The transit: redis://…, rediss://… or unix://… Absent: a private Valkey under MADEIRA_VAR.",
    "MADEIRA_CONFIG": "The configuration file (default jobs.toml).",
    "MADEIRA_VAR": "Folder of the private servers' data (default var).",
    "MADEIRA_KEY_PREFIX": "Beginning of every Redis key (default madeira).",
    "MADEIRA_LOG": "Least level that is logged: debug, info, warning or error (default info).",
    checkpoint.ENVIRONMENT_NAME: "For tests: the step at which the process kills itself, NAME or NAME:PASSES.",
}
"""Every variable that Madeira reads by itself, with its meaning; jobs.toml names more, for secrets."""

LOG_LEVELS = ("debug", "info", "warning", "error")
_LATER = {"sources": "live events", "routes": "live events"}
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What jobs.toml says. `unset_secrets` are sentences; `unready_partners` lack a secret and must not be sent to."""

    jobs: tuple[ScheduledJob, ...]
    partners: dict[str, Partner]
    unset_secrets: tuple[str, ...]
    unready_partners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a Madeira process is told from outside. A URL that is None means an embedded server."""

    database_url: str | None = field(repr=False)
    redis_url: str | None = field(repr=False)
    config: Path
    var: Path
    key_prefix: str
    log_level: str
    jobs: tuple[ScheduledJob, ...]
    partners: dict[str, Partner]
    unset_secrets: tuple[str, ...]
    unready_partners: frozenset[str]
    unknown_variables: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be meant but is likely not, a sentence each."""
        return self.unset_secrets + self.unknown_variables

    def job(self, job_id: str) -> ScheduledJob:
        """The job of that id. Raises ConfigurationError, which names the nearest one."""
        for scheduled in self.jobs:
            if scheduled.job.id == job_id:
                return scheduled
        ids = [scheduled.job.id for scheduled in self.jobs]
        raise ConfigurationError((f"{self.config}: no job is called {job_id}: {_nearest(job_id, ids)}",))

    def partner(self, name: str) -> Partner:
        """The partner of that name. Raises ConfigurationError, which names the nearest one."""
        if name in self.partners:
            return self.partners[name]
        raise ConfigurationError(
            (f"{self.config}: no partner is called {name}: {_nearest(name, list(self.partners))}",)
        )


def load(environ: Mapping[str, str]) -> Settings:
    """Read the environment and the file that it names. Raises ConfigurationError with every mistake in both."""
    mistakes = list(_environment_mistakes(environ))
    config = Path(environ.get("MADEIRA_CONFIG") or "jobs.toml")
    configuration = None
    try:
        text = _read(config)
        configuration = parse(text, path=config.name, folder=config.parent, environ=environ)
    except ConfigurationError as error:
        mistakes.extend(error.mistakes)
    if mistakes or configuration is None:
        raise ConfigurationError(tuple(mistakes))
    return Settings(
        database_url=environ.get("MADEIRA_DATABASE_URL") or None,
        redis_url=environ.get("MADEIRA_REDIS_URL") or None,
        config=config,
        var=Path(environ.get("MADEIRA_VAR") or "var"),
        key_prefix=environ.get("MADEIRA_KEY_PREFIX") or "madeira",
        log_level=(environ.get("MADEIRA_LOG") or "info").lower(),
        jobs=configuration.jobs,
        partners=configuration.partners,
        unset_secrets=configuration.unset_secrets,
        unready_partners=configuration.unready_partners,
        unknown_variables=tuple(_unknown_variables(environ)),
    )


def parse(text: str, *, path: str, folder: Path, environ: Mapping[str, str]) -> Configuration:
    """Parse the text of jobs.toml. `path` is what messages call it; query files are relative to `folder`.

    Raises ConfigurationError with every mistake, each with its line and fix. No message shows a secret's value.
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
        self._unready: set[str] = set()

    def read(self, root: Mapping[str, object]) -> Configuration:
        for key in root:
            if key in _LATER:
                self._mistakes.add(
                    (key,), f"is not in this version yet ({_LATER[key]} come later): remove it"
                )
            elif key not in {"jobs", "partners"}:
                self._mistakes.add((key,), unknown_key(key, ("jobs", "partners")))
        partners = tuple(self._partners(root.get("partners", {})))
        names = frozenset(self._partner_names(root))
        jobs = tuple(self._jobs(root.get("jobs", []), names))
        if self._mistakes.found:
            raise ConfigurationError(self._mistakes.found)
        return Configuration(
            jobs=jobs,
            partners={partner.name: partner for partner in partners},
            unset_secrets=tuple(
                f"{variable} is not set (for {_listed(places)}): set it before it is needed"
                for variable, places in self._unset.items()
            ),
            unready_partners=frozenset(self._unready),
        )

    @staticmethod
    def _partner_names(root: Mapping[str, object]) -> tuple[str, ...]:
        # Also those with a mistake: a job that names one of them is right.
        partners = root.get("partners")
        return tuple(partners) if isinstance(partners, dict) else ()

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
            if isinstance(raw, dict) and isinstance(raw.get("endpoint"), str | None):
                table = self._validated(path, raw, PartnerTable)
                if table is not None:
                    yield self._partner(name, table)
            else:
                self._validated(path, raw, PartnerTable)

    def _partner(self, name: str, table: PartnerTable) -> Partner:
        path = ("partners", name)
        if table.lateness >= table.guard:
            self._mistakes.add(
                (*path, "lateness"),
                f"must be below guard ({shown_duration(table.guard)}), is {shown_duration(table.lateness)}: "
                "a send that is late by the whole guard breaks the promised rate",
            )
        keys = [self._secret(variable, path, "signing_key_env") for variable in table.signing_key_env]
        headers = [
            (
                header,
                self._secret(content.name, path, "headers") if isinstance(content, Variable) else content,
            )
            for header, content in table.headers
        ]
        if None in keys or any(content is None for _, content in headers):
            self._unready.add(name)
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
            headers=tuple((header, content) for header, content in headers if content is not None),
        )

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
                    f"{_nearest(partner, sorted(partners))}",
                )
        currency = raw.get("currency")
        if isinstance(currency, str) and (wrong := _wrong_currency(currency)):
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
            currency_is_column=table.currency is not None and not table.currency.isupper(),
            event_type=table.event_type or table.id,
            order_key=table.order_key,
            partners=partners,
            dsn_env=table.source.dsn_env,
        )
        schedule = Schedule(start=table.start, timezone=table.timezone, calendar=Calendar(table.calendar))
        return ScheduledJob(job=job, schedule=schedule)

    def _secret(self, variable: str, path: tuple[str, str | int], key: str) -> str | None:
        """The variable's value; None, and noted, when it is not set or empty."""
        value = self._environ.get(variable)
        if not value:
            self._unset.setdefault(variable, []).append(f"{self._mistakes.called(path)}.{key}")
            return None
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


def _wrong_currency(value: str) -> str | None:
    """What is wrong with a `currency`: capitals are a code, anything else is a column."""
    code = value.upper()
    known = code in Currency.__members__ or any(code == currency.code for currency in Currency)
    if known and value != code:
        return f'is "{value}": write "{code}"'
    if known:
        if Currency(code).exponent is None:
            return f'is "{value}", which has no minor unit, so its amounts cannot be exact: use a currency'
        return None
    if value.isupper() or not is_column(value):
        return f'must be an ISO 4217 code like "CZK" or a column in small letters, is {value[:80]!r}'
    return None


def _environment_mistakes(environ: Mapping[str, str]) -> Iterator[str]:
    for name, schemes in (
        ("MADEIRA_DATABASE_URL", ("postgresql", "postgres")),
        ("MADEIRA_REDIS_URL", ("redis", "rediss", "unix")),
    ):
        # Never shows the value: it has a password in it.
        value = environ.get(name)
        if value and not _is_url(value, schemes):
            yield f"environment: {name} must be a URL that begins with {' or '.join(f'{s}://' for s in schemes)}"
    prefix = environ.get("MADEIRA_KEY_PREFIX")
    if prefix and not NAME.fullmatch(prefix):
        yield f"environment: MADEIRA_KEY_PREFIX must be 1 to 64 letters, digits, _ or -, is {prefix[:80]!r}"
    level = environ.get("MADEIRA_LOG")
    if level and level.lower() not in LOG_LEVELS:
        yield f"environment: MADEIRA_LOG must be one of {', '.join(LOG_LEVELS)}, is {level[:40]!r}"


def _is_url(value: str, schemes: tuple[str, ...]) -> bool:
    try:
        url = urlsplit(value)
        _ = url.port
    except ValueError:
        return False
    return url.scheme in schemes


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environ):
        if name.startswith("MADEIRA_") and name not in ENVIRONMENT:
            near = get_close_matches(name, ENVIRONMENT, n=1, cutoff=0.85)
            if near:
                yield f"environment: nothing reads {name}: did you mean {near[0]}?"


def _read(config: Path) -> str:
    try:
        # A BOM, as Windows editors write it, is no mistake.
        return config.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(
            (f"{config}: the file is not there: create it, or name another with MADEIRA_CONFIG",)
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            (f"{config}: byte {error.start} is not UTF-8: save the file as UTF-8",)
        ) from None
    except OSError as error:
        raise ConfigurationError((f"{config}: cannot be read ({error.strerror}): mend that",)) from None


def _syntax_mistake(path: str, error: tomllib.TOMLDecodeError) -> str:
    said, _, place = str(error).partition(" (at ")
    line = place.removeprefix("line ").split(",")[0]
    where = f"{path}:{line}" if line.isdecimal() else path
    return f"{where}: is not TOML ({said}, at {place.rstrip(')')}): text needs quotes, each key stands once in its table"


def _nearest(name: str, known: list[str]) -> str:
    if not known:
        return "none is configured"
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {_listed(known)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""Settings: everything that a process is told from outside, which is the environment and jobs.toml.

All mistakes are told at once. Who needs a secret looks at `unready_partners` and `Job.dsn`: unset ones are
warnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from madeira.configuration import parse
from madeira.mistakes import nearest
from madeira.values import listen_address
from pipelines.live_source import LiveSource
from pipelines.route import Route
from scheduler.jobs import ScheduledJob
from sinks.partner import Partner
from streams import checkpoint
from streams.envelope import NAME
from streams.errors import ConfigurationError

ENVIRONMENT: dict[str, str] = {
    "MADEIRA_DATABASE_URL": "The record: postgresql://… Absent: a private PostgreSQL under MADEIRA_VAR.",
    "MADEIRA_REDIS_URL": "The transit: redis://…, rediss://… or unix://… Absent: a private Valkey there, too.",
    "MADEIRA_CONFIG": "The configuration file (default jobs.toml).",
    "MADEIRA_VAR": "Folder of the private servers' data (default var).",
    "MADEIRA_KEY_PREFIX": "Beginning of every Redis key (default madeira).",
    "MADEIRA_LISTEN": "Where `madeira serve` takes events, HOST:PORT (default 127.0.0.1:8700).",
    "MADEIRA_METRICS_DIR": "Folder in which processes keep their metrics (default: metrics under MADEIRA_VAR).",
    "MADEIRA_LOG": "Least level that is logged: debug, info, warning or error (default info).",
    checkpoint.ENVIRONMENT_NAME: "For tests: the step at which the process kills itself, NAME[:PASSES].",
}
"""Every variable that Madeira reads by itself, with its meaning; jobs.toml names more, for secrets."""

DEFAULT_LISTEN = ("127.0.0.1", 8700)
LOG_LEVELS = ("debug", "info", "warning", "error")


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
    unready_partners: dict[str, tuple[str, ...]]
    unknown_variables: tuple[str, ...] = ()
    sources: dict[str, LiveSource] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    unready_sources: frozenset[str] = frozenset()
    """A variable with a key of theirs is not set: what they post is answered 503."""
    listen: tuple[str, int] = DEFAULT_LISTEN
    metrics_dir: Path = Path("var/metrics")

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
        raise ConfigurationError((f"{self.config}: no job is called {job_id}: {nearest(job_id, ids)}",))

    def partner(self, name: str) -> Partner:
        """The partner of that name. Raises ConfigurationError, which names the nearest one."""
        if name in self.partners:
            return self.partners[name]
        raise ConfigurationError(
            (f"{self.config}: no partner is called {name}: {nearest(name, list(self.partners))}",)
        )


def config_path(environ: Mapping[str, str]) -> Path:
    """The configuration file that the environment names."""
    return Path(environ.get("MADEIRA_CONFIG") or "jobs.toml")


def load(environ: Mapping[str, str]) -> Settings:
    """Read the environment and the file it names. Raises ConfigurationError with every mistake in both."""
    mistakes = list(_environment_mistakes(environ))
    config = config_path(environ)
    configuration = None
    try:
        text = _read(config)
        configuration = parse(text, path=config.name, folder=config.parent, environ=environ)
    except ConfigurationError as error:
        mistakes.extend(error.mistakes)
    if mistakes or configuration is None:
        raise ConfigurationError(tuple(mistakes))
    var = Path(environ.get("MADEIRA_VAR") or "var")
    return Settings(
        database_url=environ.get("MADEIRA_DATABASE_URL") or None,
        redis_url=environ.get("MADEIRA_REDIS_URL") or None,
        config=config,
        var=var,
        key_prefix=environ.get("MADEIRA_KEY_PREFIX") or "madeira",
        log_level=(environ.get("MADEIRA_LOG") or "info").lower(),
        jobs=configuration.jobs,
        partners=configuration.partners,
        unset_secrets=configuration.unset_secrets,
        unready_partners=configuration.unready_partners,
        unknown_variables=tuple(_unknown_variables(environ)),
        sources=configuration.sources,
        routes=configuration.routes,
        unready_sources=configuration.unready_sources,
        listen=listen_address(environ["MADEIRA_LISTEN"]) if environ.get("MADEIRA_LISTEN") else DEFAULT_LISTEN,
        metrics_dir=Path(environ.get("MADEIRA_METRICS_DIR") or var / "metrics"),
    )


def _environment_mistakes(environ: Mapping[str, str]) -> Iterator[str]:
    for name, schemes in (
        ("MADEIRA_DATABASE_URL", ("postgresql", "postgres")),
        ("MADEIRA_REDIS_URL", ("redis", "rediss", "unix")),
    ):
        # Never shows the value: it has a password in it.
        value = environ.get(name)
        if value and not _is_url(value, schemes):
            begins = " or ".join(f"{scheme}://" for scheme in schemes)
            yield f"environment: {name} must be a URL that begins with {begins}"
    prefix = environ.get("MADEIRA_KEY_PREFIX")
    if prefix and not NAME.fullmatch(prefix):
        yield f"environment: MADEIRA_KEY_PREFIX must be 1 to 64 letters, digits, _ or -, is {prefix[:80]!r}"
    listen = environ.get("MADEIRA_LISTEN")
    if listen:
        try:
            listen_address(listen)
        except ValueError as error:
            yield f"environment: MADEIRA_LISTEN {error}"
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

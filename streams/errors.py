"""Every exception that Madeira raises on purpose, as one tree.

    MadeiraError
    ├── ConfigurationError      jobs.toml or the environment is wrong; the text says place and fix
    ├── StaleGeneration         Redis belongs to another generation: stop, ask PostgreSQL, begin again
    │   └── TransitLost         a lane, its consumer group or an entry in hand is gone: recovery must walk
    ├── StoreUnavailable        Redis or PostgreSQL does not answer; the caller backs off and tries again
    │   ├── StoreFull           Redis is at its memory limit; nothing was changed
    │   └── EmbeddedError       (madeira/embedded_server.py) a private server does not start, answer or stop
    │       └── Died            one that ran a moment ago is gone; it is started again
    ├── SchemaTooOld            the database lacks a migration; the text names the command
    ├── BatchRefused            a batch cannot be released; nothing of it was sent
    ├── ReportMismatch          written files and SQL's totals differ; nothing was published
    ├── ReportNotWritten        the report's folder cannot be written (permission, disk full); nothing was published
    └── DemoFailed              (madeira/demo_stage.py) the demo cannot go on; the text says where to look

The expected (a partner's answer, a paused partner, nothing to do) is a value, never one of these.
"""

from __future__ import annotations


class MadeiraError(Exception):
    """Base of every error that Madeira raises on purpose."""


class ConfigurationError(MadeiraError):
    """One or more mistakes in `jobs.toml` or the environment.

    `mistakes` holds one line each, every one with its place and its fix.
    """

    def __init__(self, mistakes: tuple[str, ...]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


class StaleGeneration(MadeiraError):
    """A script answered STALE: `pace` is missing or carries another generation. Nothing was changed."""


class TransitLost(StaleGeneration):
    """A lane, its consumer group or an entry in hand is gone although the generation is right.

    What the same script did for other lanes and entries stands; recovery drops and feeds all of it again.
    """


class StoreUnavailable(MadeiraError):
    """Redis or PostgreSQL could not be reached or timed out."""


class StoreFull(StoreUnavailable):
    """Redis is at its memory limit; the command that it refused has changed nothing."""


class SchemaTooOld(MadeiraError):
    """The database is not at the schema that this program was written for."""


class BatchRefused(MadeiraError):
    """A batch cannot be released; nothing of it was sent."""


class ReportMismatch(MadeiraError):
    """What was written and what SQL says differ; nothing was published."""


class ReportNotWritten(MadeiraError):
    """The report's folder cannot be written; nothing was published."""

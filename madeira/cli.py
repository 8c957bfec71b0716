"""The `madeira` command: reads arguments, calls one function, prints what it says, exits with its code.

Exit codes: 0 fine, 1 something needs somebody's attention, 2 wrong input or configuration (for `reconcile`: it
does not balance), 3 a store does not answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from uuid import uuid4

import click
import uvloop

from madeira import commands, logs, running, show
from madeira import send as posting
from madeira.dead_cli import cancel, dead, who
from madeira.embedded_server import EmbeddedError
from madeira.settings import LOG_LEVELS, Settings, load
from madeira.status import status_of
from madeira.trace import trace_of
from madeira.unroutable import (
    list_conflicts,
    list_unroutable,
    route_again,
    settle_conflict,
    show_conflict,
)
from madeira.values import listen_address
from streams.errors import ConfigurationError, MadeiraError, StoreUnavailable

DATE = click.DateTime(formats=["%Y-%m-%d"])


class _Madeira(click.Group):
    """Turns Madeira's own errors into their text and an exit code; anything else is a fault and shows its trace."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            for mistake in error.mistakes:
                click.echo(mistake, err=True)
            ctx.exit(2)
        except EmbeddedError as error:
            click.echo(str(error), err=True)
            ctx.exit(3)
        except StoreUnavailable as error:
            click.echo(f"a store does not answer: {error}", err=True)
            ctx.exit(3)
        except MadeiraError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)


@click.group(cls=_Madeira, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--config", type=click.Path(path_type=Path), help="The jobs file (default: MADEIRA_CONFIG or jobs.toml)."
)
@click.version_option(package_name="madeira")
@click.pass_context
def main(ctx: click.Context, config: Path | None) -> None:
    """Deliver payments to partners at the rate each agreed to, and account for them to the cent."""
    environ = dict(os.environ)
    if config is not None:
        environ["MADEIRA_CONFIG"] = str(config)
        os.environ["MADEIRA_CONFIG"] = str(config)  # for the worker processes that `work` and `up` start
    level = environ.get("MADEIRA_LOG", "").lower()
    logs.set_up(level.upper() if level in LOG_LEVELS else "INFO")  # another one is told by `load`
    ctx.obj = lambda: load(environ)


def _settings(ctx: click.Context) -> Settings:
    read: Callable[[], Settings] = ctx.obj
    return read()


def _address(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, int] | None:
    try:
        return None if text is None else listen_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _tags(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> running.Tags:
    pairs = [text.partition("=") for given in texts for text in given.split(",")]
    for name, equals, _value in pairs:
        if not (name and equals):
            raise click.BadParameter("write NAME=VALUE, like region=sh")
    return tuple((name.strip(), value.strip()) for name, _equals, value in pairs)


@main.command()
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes."
)
@click.option(
    "--tags",
    multiple=True,
    callback=_tags,
    metavar="NAME=VALUE",
    help="Send only to partners that have this tag, and every other one given.",
)
@click.option(
    "--metrics", "metrics_at", callback=_address, metavar="HOST:PORT", help="Tell /metrics and /readyz there."
)
@click.pass_context
def work(ctx: click.Context, processes: int, tags: running.Tags, metrics_at: tuple[str, int] | None) -> None:
    """Route, feed, send, retry, record and recover until SIGTERM."""
    sys.exit(uvloop.run(running.work(_settings(ctx), processes=processes, tags=tags, metrics_at=metrics_at)))


@main.command()
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that serve."
)
@click.option(
    "--listen",
    callback=_address,
    metavar="HOST:PORT",
    help="Where (default: MADEIRA_LISTEN, 127.0.0.1:8700).",
)
@click.pass_context
def serve(ctx: click.Context, processes: int, listen: tuple[str, int] | None) -> None:
    """Take live events over HTTP until SIGTERM."""
    from madeira.serving import (
        serve as take,  # aiohttp's server: a tenth of a second that no other command needs
    )

    sys.exit(uvloop.run(take(_settings(ctx), processes=processes, listen=listen)))


@main.command()
@click.pass_context
def schedule(ctx: click.Context) -> None:
    """Fire each job at its time; catch up on missed nights; resume runs whose process died."""
    sys.exit(running.schedule(_settings(ctx)))


@main.command()
@click.option(
    "--processes", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes."
)
@click.pass_context
def up(ctx: click.Context, processes: int) -> None:
    """Workers, scheduler and, where jobs.toml has sources, `serve` in one go."""
    sys.exit(uvloop.run(running.up(_settings(ctx), processes=processes)))


@main.command()
@click.option("--offline", is_flag=True, help="Only the file and the environment, not the servers.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def check(ctx: click.Context, *, offline: bool, as_json: bool) -> None:
    """Look at jobs.toml, the environment and the servers; say what is wrong and how to mend it."""
    try:
        settings = _settings(ctx)
    except ConfigurationError as error:
        if not as_json:
            raise
        show.say_json({"ok": False, "errors": error.mistakes, "warnings": [], "facts": []})
        sys.exit(2)
    sys.exit(commands.check(settings, offline=offline, as_json=as_json))


@main.command()
@click.pass_context
def migrate(ctx: click.Context) -> None:
    """Bring the database to the schema that this program needs."""
    sys.exit(commands.migrate(_settings(ctx)))


@main.command()
@click.option("--count", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs per job.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def jobs(ctx: click.Context, count: int, *, as_json: bool) -> None:
    """List the next runs in local time and UTC."""
    sys.exit(commands.jobs(_settings(ctx), count=count, as_json=as_json))


@main.group()
def batch() -> None:
    """Run or plan one job's batch by hand."""


@batch.command("run")
@click.argument("job")
@click.option("--date", "day", type=DATE, required=True, help="The business date.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def batch_run(ctx: click.Context, job: str, day: date, *, as_json: bool) -> None:
    """Load and release JOB for one business date; a second run does nothing and says so."""
    sys.exit(commands.batch_run(_settings(ctx), job, _day(day), as_json=as_json))


@batch.command("plan")
@click.argument("job")
@click.option("--date", "day", type=DATE, required=True, help="The business date.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def batch_plan(ctx: click.Context, job: str, day: date, *, as_json: bool) -> None:
    """Say what `batch run` would load, with counts and sums, and write nothing."""
    sys.exit(commands.batch_plan(_settings(ctx), job, _day(day), as_json=as_json))


@main.command()
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def status(ctx: click.Context, *, as_json: bool) -> None:
    """What happens now, partner by partner; exits 1 if anything needs attention."""
    sys.exit(asyncio.run(status_of(_settings(ctx), as_json=as_json)))


@main.group("unroutable")
def unroutable() -> None:
    """Live events that were accepted and found no partner."""


@unroutable.command("list")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Events shown.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def unroutable_list(ctx: click.Context, *, limit: int, as_json: bool) -> None:
    """Which they are and why, the oldest first; exits 1 if there is any."""
    sys.exit(asyncio.run(list_unroutable(_settings(ctx), limit=limit, as_json=as_json)))


@unroutable.command("route")
@click.option("--dry-run", is_flag=True, help="Say what would come of it, change nothing.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def unroutable_route(ctx: click.Context, *, dry_run: bool, as_json: bool) -> None:
    """Try again with the routes of today; exits 1 if some still find none."""
    sys.exit(asyncio.run(route_again(_settings(ctx), who=who(), dry_run=dry_run, as_json=as_json)))


@main.group("conflicts")
def conflicts() -> None:
    """Ids that came again with another body, which was not sent."""


@conflicts.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that are settled.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def conflicts_list(ctx: click.Context, *, every: bool, as_json: bool) -> None:
    """Which are open; exits 1 if any is."""
    sys.exit(asyncio.run(list_conflicts(_settings(ctx), every=every, as_json=as_json)))


@conflicts.command("show")
@click.argument("number", type=int)
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def conflicts_show(ctx: click.Context, number: int, *, as_json: bool) -> None:
    """Both bodies: the one that was accepted and the one that was not."""
    sys.exit(asyncio.run(show_conflict(_settings(ctx), number, as_json=as_json)))


@conflicts.command("settle")
@click.argument("number", type=int)
@click.option("--why", default="", help="For the audit row.")
@click.pass_context
def conflicts_settle(ctx: click.Context, number: int, *, why: str) -> None:
    """Note that you have looked at it; its bytes stay."""
    sys.exit(asyncio.run(settle_conflict(_settings(ctx), number, who=who(), why=why)))


@main.command()
@click.argument("event_id")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def trace(ctx: click.Context, event_id: str, *, as_json: bool) -> None:
    """Follow one event: where it is and every attempt. EVENT_ID or SOURCE:EVENT_ID."""
    sys.exit(asyncio.run(trace_of(_settings(ctx), event_id, as_json=as_json)))


def _pausing(name: str, *, paused: bool, text: str) -> None:
    @main.command(name, help=text)
    @click.argument("partner", required=False)
    @click.option("--all", "every", is_flag=True, help="Every partner.")
    @click.option("--why", default="", help="For the audit row.")
    @click.option("--dry-run", is_flag=True, help="Say what would wait, change nothing.")
    @click.pass_context
    def command(ctx: click.Context, partner: str | None, *, every: bool, why: str, dry_run: bool) -> None:
        if (partner is None) == (not every):
            raise click.UsageError("name one PARTNER, or say --all")
        sys.exit(
            asyncio.run(
                commands.set_paused(
                    _settings(ctx), partner, paused=paused, who=who(), why=why, dry_run=dry_run
                )
            )
        )


@main.command()
@click.option("--json", "as_json", is_flag=True)
def keygen(*, as_json: bool) -> None:
    """Print a new secret for signing; put it into the variable that jobs.toml names."""
    sys.exit(posting.keygen(as_json=as_json))


def _payload(_: click.Context, __: click.Parameter, text: str) -> bytes:
    try:
        if text == "-":
            payload = sys.stdin.buffer.read()
        elif text.startswith("@"):
            payload = Path(text[1:]).read_bytes()
        else:
            payload = text.encode()
        posting.check_payload(payload)
    except OSError as error:
        raise click.BadParameter(f"{text[1:]} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return payload


def _url(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    try:
        if text is not None:
            posting.check_url(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


@main.command()
@click.option("--source", required=True, help="The source of jobs.toml that signs.")
@click.option("--type", "event_type", required=True, help="The event's type, like payment.created.")
@click.option("--id", "event_id", help="The event's id; made up if absent.")
@click.option("--routing-key", default="", help="What routes look at; often the partner's name.")
@click.option(
    "--tag", "tags", multiple=True, callback=_tags, metavar="NAME=VALUE", help="As often as needed."
)
@click.option("--amount", help="A decimal, like 12.50; needs --currency.")
@click.option("--currency", help="Its ISO 4217 code.")
@click.option(
    "--payload",
    default="{}",
    show_default=True,
    callback=_payload,
    help="JSON, @FILE, or - for standard input.",
)
@click.option(
    "--url", callback=_url, help=f"Where madeira serve listens (default: MADEIRA_LISTEN, {posting.URL})."
)
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def send(
    ctx: click.Context,
    *,
    source: str,
    event_type: str,
    event_id: str | None,
    routing_key: str,
    tags: running.Tags,
    amount: str | None,
    currency: str | None,
    payload: bytes,
    url: str | None,
    as_json: bool,
) -> None:
    """Post one event to madeira serve, signed with the source's key from the environment."""
    if (amount is None) != (currency is None):
        raise click.UsageError("give --amount and --currency together")
    event = posting.Event(
        event_id=event_id or str(uuid4()),
        event_type=event_type,
        payload=payload,
        routing_key=routing_key,
        tags=dict(tags),
        amount=amount,
        currency=currency,
    )
    sys.exit(posting.send(_settings(ctx), source, event, url=url, as_json=as_json))


main.add_command(dead)
main.add_command(cancel)
_pausing("pause", paused=True, text="Stop sending to PARTNER at once; its deliveries wait.")
_pausing("resume", paused=False, text="Send to PARTNER again.")


@main.command()
@click.option("--date", "day", type=DATE, required=True, help="The business date.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("reports"), show_default=True)
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def reconcile(ctx: click.Context, day: date, out: Path, *, as_json: bool) -> None:
    """Write the morning's CSVs. Exits 0 closed, 1 open items, 2 does not balance."""
    from madeira.morning import reconcile as write  # pandas: half a second that no other command needs

    sys.exit(write(_settings(ctx), _day(day), out=out, as_json=as_json))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Log lines only, and one JSON object as the last line.")
@click.option("--keep", is_flag=True, help="Leave the demo's servers and workers running to look around.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where the demo keeps its data (default: var/demo)."
)
def demo(*, as_json: bool, keep: bool, folder: Path | None) -> None:
    """One night's payment orders to thirteen banks, on embedded servers, in under two minutes."""
    from madeira.demo import run_demo

    sys.exit(run_demo(as_json=as_json, keep=keep, folder=folder))


def _day(moment: date) -> date:
    """click parses a date as a datetime."""
    return date(moment.year, moment.month, moment.day)

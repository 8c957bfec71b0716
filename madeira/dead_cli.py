"""The arguments of `madeira dead` and `madeira cancel`: which deliveries are meant, and what is done to them."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import wraps
from pathlib import Path

import click
import msgspec

from madeira import dead as doing
from madeira.settings import Settings
from madeira.values import duration
from pipelines.dead_letters import Filter
from streams.delivery import Cause
from streams.envelope import Lane
from streams.money import MoneyError, to_minor


def who() -> str:
    """Who is at the keyboard, for the audit row."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _settings(ctx: click.Context) -> Settings:
    read: Callable[[], Settings] = ctx.obj
    return read()


def _duration(_: click.Context, __: click.Parameter, text: str | None) -> timedelta | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _amount(_: click.Context, __: click.Parameter, text: str | None) -> Decimal | None:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        raise click.BadParameter("must be a decimal, like 12.50") from None


def _key(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is not None and not all(text.partition(":")):
        raise click.BadParameter("write SOURCE:EVENT_ID")
    return text


@dataclass(frozen=True, slots=True)
class _Given:
    """What of a filter is given with options."""

    partner: str | None
    cause: str | None
    job: str | None
    event: str | None
    day: datetime | None
    older_than: timedelta | None
    currency: str | None
    min_amount: Decimal | None
    max_amount: Decimal | None
    lane: str | None

    def filter(self) -> Filter:
        """Raises `click.UsageError` for an amount without its currency, or one that it does not have."""
        currency = self.currency
        least = most = None
        if self.min_amount is not None or self.max_amount is not None:
            if currency is None:
                raise click.UsageError("give --currency with --min-amount and --max-amount")
            try:
                least = None if self.min_amount is None else to_minor(self.min_amount, currency)
                most = None if self.max_amount is None else to_minor(self.max_amount, currency)
            except MoneyError as error:
                raise click.UsageError(str(error)) from None
        return Filter(
            partner=self.partner,
            cause=self.cause,
            job=self.job,
            key=self.event,
            day=None if self.day is None else self.day.date(),
            before=None if self.older_than is None else datetime.now(UTC) - self.older_than,
            currency=currency,
            least=least,
            most=most,
            lane=None if self.lane is None else Lane(self.lane),
        )


_FILTERS = (
    click.option("--partner", help="Only deliveries to this partner."),
    click.option("--cause", type=click.Choice([cause.value for cause in Cause]), help="Only these dead."),
    click.option("--job", help="Only rows of this job."),
    click.option("--event", callback=_key, metavar="SOURCE:EVENT_ID", help="Only this event."),
    click.option(
        "--date",
        "day",
        type=click.DateTime(formats=["%Y-%m-%d"]),
        help="Only this business date; of live events without one, the UTC day on which they came.",
    ),
    click.option(
        "--older-than", callback=_duration, metavar="AGE", help="Only what came longer ago, like 2d or 6h."
    ),
    click.option("--currency", help="Only this currency."),
    click.option("--min-amount", callback=_amount, metavar="AMOUNT", help="Needs --currency."),
    click.option("--max-amount", callback=_amount, metavar="AMOUNT", help="Needs --currency."),
    click.option("--lane", type=click.Choice([lane.value for lane in Lane]), help="How it came in."),
)
_ACTS = (
    click.option("--why", default="", help="For the audit row."),
    click.option("--dry-run", is_flag=True, help="Say counts and sums, change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--json", "as_json", is_flag=True, help="For programs; needs --yes or --dry-run."),
)


_NAMES = tuple(each.name for each in fields(_Given))


def _filtered(function: Callable[..., None]) -> Callable[..., None]:
    """A command that is given the context, a `Filter` made of its options, and the rest by name."""

    @click.pass_context
    @wraps(function)
    def command(ctx: click.Context, /, **given: object) -> None:
        which = msgspec.convert({name: given.pop(name) for name in _NAMES}, _Given).filter()
        function(ctx, which, **given)

    for option in reversed(_FILTERS):
        command = option(command)
    return command


def _acting(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_ACTS):
        function = option(function)
    return function


def _confirm(*, yes: bool, dry_run: bool, as_json: bool) -> doing.Confirm:
    """Asks, unless `--yes` was given. Raises `click.UsageError` where a program would be asked."""
    if as_json and not yes and not dry_run:
        raise click.UsageError("give --yes or --dry-run with --json: a program is not asked")
    return lambda question: yes or click.confirm(question)


@click.group("dead")
def dead() -> None:
    """Dead letters: what came to nothing, and what you do about it."""


@dead.command("list")
@click.option(
    "--by", type=click.Choice(["cause", "partner", "job"]), default="cause", show_default=True, help="Groups."
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Dead letters shown.")
@click.option("--json", "as_json", is_flag=True)
@_filtered
def list_(ctx: click.Context, which: Filter, *, by: str, limit: int, as_json: bool) -> None:
    """Groups with counts and sums, then the dead letters as they came in; exits 1 if there is any."""
    sys.exit(asyncio.run(doing.list_dead(_settings(ctx), which, by=by, limit=limit, as_json=as_json)))


@dead.command("show")
@click.argument("key", callback=_key, metavar="SOURCE:EVENT_ID")
@click.option("--partner", help="Only the delivery to this partner.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def show(ctx: click.Context, key: str, partner: str | None, *, as_json: bool) -> None:
    """Everything of one event: body, headers, every attempt, what operators did."""
    sys.exit(asyncio.run(doing.show_dead(_settings(ctx), key, partner=partner, as_json=as_json)))


def _target(_: click.Context, __: click.Parameter, path: Path) -> Path:
    if path.suffix not in {".csv", ".jsonl"}:
        raise click.BadParameter("must end in .csv or .jsonl")
    return path


@dead.command("export")
@click.argument("file", type=click.Path(path_type=Path), callback=_target)
@_filtered
def export(ctx: click.Context, which: Filter, *, file: Path) -> None:
    """Write all of them to FILE.csv or, with their bodies, to FILE.jsonl."""
    sys.exit(doing.export_dead(_settings(ctx), which, file))


@dead.command("replay")
@click.option(
    "--original/--current-route",
    "original",
    default=True,
    help="The bytes and address as they were first made (default), or as today's routes make them for live events.",
)
@_acting
@_filtered
def replay(
    ctx: click.Context,
    which: Filter,
    *,
    original: bool,
    why: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send them again, in the order in which they came in, as a batch at the partner's pace."""
    confirm = _confirm(yes=yes, dry_run=dry_run, as_json=as_json)
    sys.exit(
        asyncio.run(
            doing.replay_dead(
                _settings(ctx),
                which,
                who=who(),
                why=why,
                current_route=not original,
                dry_run=dry_run,
                as_json=as_json,
                confirm=confirm,
            )
        )
    )


def _cancelling(name: str, *, dead_ones: bool, text: str) -> click.Command:
    @click.command(name, help=text)
    @click.option(
        "--wait",
        "patience",
        callback=_duration,
        default="60s",
        show_default=True,
        metavar="TIME",
        help="At most so long for what is being sent.",
    )
    @_acting
    @_filtered
    def command(
        ctx: click.Context,
        which: Filter,
        *,
        patience: timedelta,
        why: str,
        dry_run: bool,
        yes: bool,
        as_json: bool,
    ) -> None:
        confirm = _confirm(yes=yes, dry_run=dry_run, as_json=as_json)
        if not dry_run and not why:
            raise click.UsageError("say --why: for the audit row, and for whoever looks for the payment")
        if yes and which == Filter():
            raise click.UsageError(
                "with --yes say which are meant: one of --partner, --job, --event, --date, …"
            )
        sys.exit(
            asyncio.run(
                doing.cancel_deliveries(
                    _settings(ctx),
                    which,
                    dead=dead_ones,
                    who=who(),
                    why=why,
                    dry_run=dry_run,
                    as_json=as_json,
                    patience=patience,
                    confirm=confirm,
                )
            )
        )

    return command


cancel = _cancelling(
    "cancel",
    dead_ones=False,
    text="Take back what waits to be sent; returns when nothing of it can arrive any more.",
)
dead.add_command(
    _cancelling(
        "cancel",
        dead_ones=True,
        text="Close dead letters that shall never be sent, unless they may have arrived.",
    )
)


@dead.command("resolve")
@click.argument("key", callback=_key, metavar="SOURCE:EVENT_ID")
@click.option(
    "--as",
    "found",
    type=click.Choice(["delivered", "not-delivered"]),
    required=True,
    help="What the partner says.",
)
@click.option("--note", required=True, help="Who said so, for the audit row and the report.")
@click.option("--partner", help="Only the delivery to this partner.")
@click.pass_context
def resolve(ctx: click.Context, key: str, found: str, note: str, partner: str | None) -> None:
    """Settle by hand one that may have arrived."""
    sys.exit(
        asyncio.run(
            doing.resolve_dead(
                _settings(ctx), key, partner=partner, delivered=found == "delivered", who=who(), note=note
            )
        )
    )

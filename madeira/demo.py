"""`madeira demo`: one night of real payment orders, to thirteen banks on this machine, and the morning after.

Everything is done by the commands that an operator would give, as processes of their own; this file starts them,
watches the record, and at the end puts three books side by side: accounting's, Madeira's and the banks'.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import FrameType

import msgspec
import psycopg

from madeira import embedded, show
from madeira.demo_count import Counts, Progress, count, read_ledger, read_progress, read_run, read_source
from madeira.demo_shop import SOURCE, read_book
from madeira.demo_stage import (
    CURRENCY,
    JOB,
    Cast,
    DemoFailed,
    Night,
    due_now,
    environment,
    how_to_stop,
    make_source,
    new_key,
    note_environment,
    open_banks,
    open_counter,
    open_shop,
    own_folder,
    whole_night,
    write_jobs,
)
from madeira.demo_view import View, money, near
from madeira.embedded import Embedded, EmbeddedError
from madeira.embedded_server import free_port
from pipelines.manifest import NOTHING
from streams.money import render

_LOOK_EVERY_S = 0.25
_WORKERS = "2"


class _Report(msgspec.Struct):
    """What the demo reads of `madeira reconcile --json`."""

    verdict: str
    directory: str
    problems: list[str]


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything that stands once the curtain rises."""

    folder: Path
    night: Night
    cast: Cast
    view: View
    database_url: str
    accounting_url: str
    banks_port: int
    listen: str
    book: Path
    business_date: date


def run_demo(*, as_json: bool, keep: bool, folder: Path | None) -> int:
    """The whole night in `folder` (default `var/demo`). 0 when it balances and nothing is open, else 1.

    Raises `DemoFailed` with what to do.
    """
    return play(whole_night(), as_json=as_json, keep=keep, folder=folder or Path("var/demo"))


def play(night: Night, *, as_json: bool, keep: bool, folder: Path) -> int:
    """Play one night; whatever happens, no process is left behind, except with `keep`."""
    view = View(night.banks, to_stderr=as_json)
    folder = folder.absolute()
    began_s = time.monotonic()
    try:
        with _signals(), own_folder(folder) as lock, ExitStack() as ending:
            try:
                scene = _set_up(ending, folder, lock, night, view)
                _drain(scene, began_s)
                report, counts = _morning(scene)
                _tell(scene, report, counts)
                _where_next(scene, report, counts, kept=keep)
            finally:
                _be_deaf()
            if keep:
                ending.pop_all()
    except KeyboardInterrupt:
        view.end()
        view.fact("ended", "before the end, at your wish; nothing is left running")
        return 130
    except EmbeddedError as error:
        raise DemoFailed(str(error)) from error
    finally:
        view.end()
    if as_json:
        show.say_json(_facts(counts, report))
    return 0 if _balanced(counts, report) and not counts.total().open.count else 1


# -- acts ------------------------------------------------------------------------------------------------


def _set_up(ending: ExitStack, folder: Path, lock: int, night: Night, view: View) -> _Scene:
    view.title("Madeira: a night of payment orders")
    view.fact("folder", f"{near(folder)}: its jobs.toml, the servers' data, a log of each process")
    # Stopped even when a signal comes while they start, and whoever else would keep them running.
    ending.callback(embedded.stop, folder / "servers")
    servers = Embedded.start(folder / "servers")
    ending.callback(servers.release)
    record_url = servers.servers.database_url
    view.fact("servers", "a private Valkey and a private PostgreSQL, started for this")
    accounting_url = make_source(record_url, orders=night.orders)
    wanted = sum(read_source(accounting_url).values(), NOTHING)
    view.fact("source", f"{wanted.count:,} orders, {money(wanted)} {CURRENCY}, in the database of accounting")

    key = new_key()
    listen = f"127.0.0.1:{free_port()}"
    cast = Cast(folder, lock, environment(folder, accounting_url, key, listen))
    ending.callback(cast.end)
    port = open_banks(cast, folder, night.banks, key)
    difficult = sum(1 for bank in night.banks if bank.difficulty)
    view.fact(
        "banks",
        f"{len(night.banks)}, a process of their own with a ledger of their own; {difficult} are difficult",
    )
    due = due_now(datetime.now(UTC))
    write_jobs(folder, due, night, port)
    _command(view, "check")
    cast.run("check")
    return _Scene(
        folder=folder,
        night=night,
        cast=cast,
        view=view,
        database_url=record_url,
        accounting_url=accounting_url,
        banks_port=port,
        listen=listen,
        book=folder / "shop.jsonl",
        business_date=due.business_date,
    )


def _drain(scene: _Scene, began_s: float) -> None:
    """Let the scheduler fire and the workers send until nothing is open, or patience ends."""
    view, cast = scene.view, scene.cast
    _command(view, "schedule", f"fires {JOB} for {scene.business_date}")
    cast.start("schedule", "madeira", "schedule")
    _command(view, f"work --processes {_WORKERS}")
    cast.start("work", "madeira", "work", "--processes", _WORKERS)
    _command(view, "serve", f"takes signed events at http://{scene.listen}")
    open_counter(cast, scene.listen)
    started_s = time.monotonic()
    orders = sum(read_source(scene.accounting_url).values(), NOTHING).count
    shop_open = False
    patience_ends_s = began_s + scene.night.patience.total_seconds()
    with psycopg.connect(scene.database_url, autocommit=True, application_name="madeira-demo") as record:
        while True:
            run = read_run(record, scene.business_date)
            if run is not None and run[0] == "failed":
                raise DemoFailed(f"{JOB} for {scene.business_date} failed: {run[1]}")
            progress = read_progress(record)
            now_s = time.monotonic()
            if not shop_open and any(each.sends for each in progress.values()):
                # Once the batch is under way: what live events are shown to wait for is the batch, not a start.
                view.fact("shop", f"posts {scene.night.live_rate:.0f} instant payments a second, some twice")
                open_shop(cast, scene.book, scene.listen, scene.night)
                shop_open = True
            view.show(progress, now_s - started_s)
            total = sum(progress.values(), Progress(""))
            over = (
                run is not None
                and run[0] == "done"
                and shop_open
                and cast.over("shop")
                and total.done == total.orders == orders + len(read_book(scene.book))
            )
            if over or now_s > patience_ends_s:
                view.end()
                took_s = now_s - started_s
                if over:
                    view.fact(
                        "drained",
                        f"in {took_s:.0f} s: {total.sends:,} sends for {total.orders:,} orders, "
                        f"{total.sends / took_s:.0f} a second",
                    )
                else:
                    left = total.orders - total.done
                    view.fact("late", f"{left:,} orders are still open after {took_s:.0f} s", style="yellow")
                return
            cast.look()
            time.sleep(_LOOK_EVERY_S)


def _morning(scene: _Scene) -> tuple[_Report, Counts]:
    """The reports by the real command, and the three books."""
    day, out = str(scene.business_date), str(scene.folder / "reports")
    _command(scene.view, f"reconcile --date {day} --out {near(scene.folder / 'reports')}")
    # 1 and 2 are answers: open items, and a day that does not balance.
    printed = scene.cast.run("reconcile", "--date", day, "--out", out, "--json", fine=(0, 1, 2))
    try:
        report = msgspec.json.decode(printed, type=_Report)
    except msgspec.DecodeError as error:
        raise DemoFailed(f"`madeira reconcile` failed: see {scene.cast.log('reconcile')}") from error
    ledger = read_ledger(scene.banks_port)
    with psycopg.connect(scene.database_url, autocommit=True, application_name="madeira-demo") as record:
        counts = count(
            record,
            source=read_source(scene.accounting_url),
            book=scene.book,
            ledger=ledger,
            banks=scene.night.banks,
        )
    return report, counts


def _tell(scene: _Scene, report: _Report, counts: Counts) -> None:
    view, total = scene.view, counts.total()
    view.title(
        f"Three books for {scene.business_date}: what accounting and the shop asked for, Madeira's, the banks'"
    )
    view.books(counts)
    if counts.balanced:
        batch = total.source.count - total.live.count
        view.verdict(
            f"the three books agree to the cent: {batch:,} orders of the batch, {total.live.count:,} live payments",
            good=True,
        )
    else:
        wrong = ", ".join(bank.name for bank in counts.banks if not bank.agrees)
        view.verdict(f"the books differ for {wrong}", good=False)
    view.verdict(
        f"no second held more sends than agreed: at most {100 * counts.over_qps:.0f} % of it"
        if counts.over_qps <= 1
        else f"a second held {100 * counts.over_qps:.0f} % of what was agreed",
        good=counts.over_qps <= 1,
    )
    view.verdict(
        f"the day is {report.verdict.replace('_', ' ')} by the reports", good=report.verdict == "closed"
    )
    waited = counts.waited
    view.fact(
        "live",
        f"first sent {waited.median_ms} ms after its 202 in the middle, {waited.p99_ms} ms for 99 of 100, beside the "
        "batch",
    )
    if waited.sent_away:
        longest_s = waited.longest_away_ms / 1000
        view.fact("", f"{waited.sent_away} for a bank that was away waited for it, {longest_s:.1f} s at most")
    view.fact("", f"{counts.posted_twice} were posted twice by the shop and taken once")
    for problem in report.problems[:5]:
        view.fact("", problem)
    for reason in counts.reasons:
        view.fact("dead", f"{reason.count} at {reason.partner}: {reason.reason}")
    if total.dead.count:
        of_batch = total.dead.count - total.live_dead.count
        view.fact(
            "",
            f"{total.dead.count} in all, {money(total.dead)} {CURRENCY}; the {of_batch} of the batch are in "
            "03_exceptions.csv",
        )
    for key in total.repeated[:3]:
        view.fact("again", f"{key}, as the answer was lost; its bank booked it once, by its Idempotency-Key")
    if total.open.count:
        view.fact("open", f"{total.open.count:,} orders, {money(total.open)} {CURRENCY}", style="yellow")


def _where_next(scene: _Scene, report: _Report, counts: Counts, *, kept: bool) -> None:
    view, folder = scene.view, scene.folder
    view.title("Where to look next")
    noted = near(note_environment(folder, scene.accounting_url))
    view.command(f". {noted if '/' in noted else f'./{noted}'}", "the demo's jobs.toml, servers and source")
    _command(view, "status", "the servers start again by themselves" if not kept else "")
    for sale in read_book(scene.book)[:1]:
        _command(view, f"trace {SOURCE}:{sale.event_id}", "a live payment")
    for key in counts.total().repeated[:1]:
        _command(view, f"trace {key}", "the payment whose answer was lost")
    for reason in counts.reasons[:1]:
        _command(view, f"trace {reason.example}", "one that is dead, and why")
    _command(view, f"batch run {JOB} --date {scene.business_date}", "a second run does nothing and says so")
    directory = Path(report.directory)
    view.command(f"column -s, -t {near(directory / '01_summary.csv')}", "the morning's summary")
    view.command(f"less {near(directory / '03_exceptions.csv')}", "each order that needs somebody's eyes")
    if kept:
        view.command(
            how_to_stop(folder), "ends workers, scheduler, banks and, with the last of them, the servers"
        )


def _facts(counts: Counts, report: _Report) -> dict[str, object]:
    """The one object of `--json`. Amounts are text with the currency's decimals."""
    total = counts.total()
    return {
        "orders": total.source.count - total.live.count,
        "live": total.live.count,
        "live_amount": render(total.live.minor, CURRENCY),
        "live_p99_ms": counts.waited.p99_ms,
        "posted_twice": counts.posted_twice,
        "amount": render(total.source.minor - total.live.minor, CURRENCY),
        "delivered": total.delivered.count,
        "delivered_amount": render(total.delivered.minor, CURRENCY),
        "dead": total.dead.count,
        "live_dead": total.live_dead.count,
        "open": total.open.count,
        "balanced": _balanced(counts, report),
        "bank_received": total.accepted.count,
        "bank_received_amount": render(total.accepted.minor, CURRENCY),
        "bank_duplicates": len(total.repeated),
        "max_per_second_over_qps": round(counts.over_qps, 4),
        "verdict": report.verdict,
        "report_dir": report.directory,
    }


def _balanced(counts: Counts, report: _Report) -> bool:
    """Our count and the reports', which are made apart from it, both say so."""
    return counts.balanced and report.verdict != "out_of_balance"


def _command(view: View, arguments: str, explained: str = "") -> None:
    beside = Path(sys.executable).with_name("madeira")
    view.command(f"{near(beside) if beside.is_file() else 'madeira'} {arguments}", explained)


_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: by an exception, so that everything is cleaned up."""

    def leave(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _be_deaf() -> None:
    """A second Ctrl-C must not cut the cleaning up short."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)

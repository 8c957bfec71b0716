"""The demo, smaller and faster: the same commands and processes, fewer orders at higher rates."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest
from rich.console import Console

from madeira.bank_ledger import Bank
from madeira.demo import play
from madeira.demo_count import BankCount, Counts, Progress
from madeira.demo_stage import DemoBank, DemoFailed, Night, due_now, own_folder, whole_night
from madeira.demo_view import Rates, View
from madeira.embedded import status
from pipelines.manifest import NOTHING, Sum

ORDERS = 300
SOURCE = Path(__file__).parents[2] / "data" / "payment_orders.csv"


def short_night() -> Night:
    """The first 300 orders at 20 a second each; the same difficulties, though some of them shorter."""
    characters = {
        "AB": Bank(unavailable_requests=5),
        "YZ": Bank(refuse_accounts=("3", "7")),
        "MN": Bank(slow_ms=200),
    }
    banks = [
        replace(bank, qps=20, behaviour=characters.get(bank.name, bank.behaviour))
        for bank in whole_night().banks
    ]
    return Night(
        banks=tuple(banks),
        orders=ORDERS,
        live_every=60,
        levels=("1s", "2s"),
        patience=timedelta(seconds=240),
    )


def source() -> Iterator[dict[str, str]]:
    """The orders of the short night as accounting has them."""
    with SOURCE.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file, delimiter=";")):
            if number == ORDERS:
                return
            yield row


def looking_around(folder: Path, command: str, day: str) -> str:
    """What `madeira batch` says afterwards in a shell of somebody who works on other servers otherwise."""
    done = subprocess.run(
        ["/bin/sh", "-c", '. "$0" && exec "$@"', folder / "environment", sys.executable, "-m", "madeira", "batch",
         command, "payment-orders", "--date", day],
        env={**os.environ, "MADEIRA_DATABASE_URL": "postgresql://127.0.0.1:1/none"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.slow
def test_every_order_is_accounted_for_by_three_books(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line of --json holds the counts of source, Madeira and banks, and they agree to the cent."""
    folder = tmp_path / "demo"

    assert play(short_night(), as_json=True, keep=False, folder=folder) == 0

    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1
    said = msgspec.json.decode(printed[0])
    orders = list(source())
    refused = [row for row in orders if row["bank_to"] == "YZ" and row["account_to"].endswith(("3", "7"))]
    amounts = {row["order_id"]: Decimal(row["amount"]) for row in orders}
    assert refused
    assert said["orders"] == ORDERS
    assert Decimal(said["amount"]) == sum(amounts.values())
    assert said["balanced"] is True
    assert said["open"] == 0
    assert said["live"] == 6_471 // 60
    assert said["posted_twice"] == said["live"] // 9
    assert said["dead"] - said["live_dead"] >= len(refused)
    assert said["delivered"] + said["dead"] == ORDERS + said["live"]
    assert said["bank_received"] == said["delivered"]
    assert said["bank_received_amount"] == said["delivered_amount"]
    assert said["bank_duplicates"] == 1  # the payment whose answer was lost
    assert said["max_per_second_over_qps"] <= 1.0
    assert said["verdict"] == "closed"
    with (Path(said["report_dir"]) / "03_exceptions.csv").open(encoding="utf-8-sig", newline="") as file:
        listed = [row for row in csv.DictReader(file) if row["category"] == "dead"]
    assert len(listed) == said["dead"] - said["live_dead"]
    assert {row["order_id"] for row in refused} <= {row["event_id"].partition(":")[0] for row in listed}

    # What the demo says to read first names its jobs.toml, servers and source, and only its owner may read it.
    assert (folder / "environment").stat().st_mode & 0o077 == 0
    assert "nothing was done" in looking_around(folder, "run", Path(said["report_dir"]).parent.name)
    assert f"{ORDERS}" in looking_around(folder, "plan", "2031-01-01")

    # Nothing that it started is left.
    left = status(folder / "servers")
    assert (left.redis_pid, left.database_pid) == (None, None)
    assert not (folder / "pids").exists()
    # The key was in the environment and, until they had read it, in a private file of the banks.
    assert not (folder / "banks" / "script.json").exists()


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Two demos at once would count each other's payments; the second one is told how to end the first."""
    with own_folder(tmp_path):
        (tmp_path / "pids").write_text("12 13\n")
        with pytest.raises(DemoFailed, match="kill 12 13"), own_folder(tmp_path):
            pass


def test_what_an_earlier_demo_left_is_removed(tmp_path: Path) -> None:
    """Each demo begins with nothing; only the lock stays, which says whose folder it is."""
    with own_folder(tmp_path):
        (tmp_path / "reports").mkdir()
        (tmp_path / "reports" / "old.csv").write_text("old")
    with own_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["demo.lock"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    """--folder that names somebody's own directory deletes nothing."""
    mine = tmp_path / "thesis.txt"
    mine.write_text("my only copy")
    with pytest.raises(DemoFailed, match="not a demo's"), own_folder(tmp_path):
        pass
    assert mine.read_text() == "my only copy"


@pytest.mark.parametrize("hour", range(24))
@pytest.mark.parametrize("minute", [0, 1, 30, 56, 59])
@pytest.mark.parametrize("month", [1, 7])
def test_the_job_is_due_whatever_time_it_is(month: int, hour: int, minute: int) -> None:
    """The start has just passed on the same date, also around midnight, which it stays for some minutes."""
    now = datetime(2026, month, 10, hour, minute, 30, tzinfo=UTC)
    due = due_now(now)
    zone = ZoneInfo(due.timezone)
    start = datetime.fromisoformat(f"{due.business_date}T{due.start}").replace(tzinfo=zone)
    assert timedelta(0) < now - start < timedelta(minutes=2)
    assert (now + timedelta(minutes=4)).astimezone(zone).date() == due.business_date


def line(**changes: object) -> BankCount:
    """Ten orders of 1.00 at one bank, nine delivered and one dead, changed as the test says."""
    plain = BankCount(
        name="AB", qps=10, source=Sum(10, 1000), live=NOTHING, live_found=NOTHING, live_dead=NOTHING,
        delivered=Sum(9, 900), dead=Sum(1, 100), open=NOTHING,
        accepted=Sum(9, 900), repeated=(), other_body=(), most_per_second=10,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"delivered": Sum(9, 901)},
        {"source": Sum(11, 1000)},
        {"accepted": Sum(8, 900)},
        {"accepted": Sum(9, 899)},
        {"other_body": ("payment-orders:1",)},
        {"live": Sum(1, 100)},
    ],
)
def test_one_cent_or_one_order_is_seen(changes: dict[str, object]) -> None:
    """A bank agrees only if counts and amounts are equal in all three books."""
    assert Counts((line(),), ()).balanced
    assert not Counts((line(), line(**changes)), ()).balanced


def test_a_burst_at_one_bank_is_seen_among_calm_ones() -> None:
    """The worst bank counts, not the mean."""
    calm = line(most_per_second=5)
    assert Counts((calm, line(most_per_second=11), calm), ()).over_qps == 1.1


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """A long quiet start does not lower the rate that is shown now."""
    rates = Rates()
    for second in range(60):
        rates.add("AB", float(second), 0)
    for second in range(60, 66):
        shown = rates.add("AB", float(second), (second - 59) * 12)
    assert shown == pytest.approx(12)


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cut_off(width: int) -> None:
    """On 80 columns and on 120 both tables show every amount to the cent."""
    view = View((DemoBank("AB", 10),), to_stderr=False)
    view.console = Console(width=width, record=True)
    big = line(source=Sum(6_471, 2_122_899_360), accepted=Sum(6_459, 2_119_925_160), open=Sum(3, 300))
    view.books(Counts((big, replace(big, name="CD")), ()))
    view.console.print(view.board({"AB": Progress("AB", orders=6471, delivered=12)}, {"AB": 9.9}, 12.0))
    shown = view.console.export_text()
    assert shown.count("21,228,993.60") == 2
    assert "42,457,987.20" in shown
    assert "42,398,503.20" in shown
    assert "…" not in shown
    assert "12 / 6,471" in shown

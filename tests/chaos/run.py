"""`make chaos`: kills at random moments and at every failpoint, then the three ledgers are compared.

    python tests/chaos/run.py [--kills 20] [--seed N] [--only NAME] [--keep]

Exits 1 when a promise is broken; then the night's folder with all its logs stays.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from tests.chaos import live, scenarios
from tests.chaos.night import Broken, Night, Verdict, night
from tests.chaos.scenarios import KINDS, Scenario

_COLUMNS = (
    "scenario", "orders", "live", "delivered", "dead", "open", "lost", "forgotten", "flagged", "twice",
    "not flagged", "of QPS", "reconcile", "recovered in",
)  # fmt: skip


def listed(kills: int, seed: int) -> Iterator[tuple[str, Scenario]]:
    """Every scenario with its name; the random ones have dice of their own, so that one can be played alone."""
    count = 0
    number = 0
    while count < kills:
        number += 1
        dice = Random(f"{seed}/{number}")
        kinds = dice.sample(KINDS, min(len(KINDS), kills - count))
        count += len(kinds)
        yield f"kills-{number}", partial(scenarios.kills, dice=dice, kinds=kinds)
    for name in ("scheduler_at_work", "flushed", "flushed_and_killed", "both_stores"):
        yield name.replace("_", "-"), partial(getattr(scenarios, name), dice=Random(f"{seed}/{name}"))
    for name in ("worker_failpoints", "loader_failpoints", "recovery_failpoints"):
        yield name.replace("_", "-"), getattr(scenarios, name)
    for number in (1, 2):
        yield f"live-kills-{number}", partial(live.kills, dice=Random(f"{seed}/live/{number}"))
    for name in ("emptied", "full", "frozen", "taken_out", "reloaded"):
        yield (
            f"live-{name.replace('_', '-')}",
            partial(getattr(live, name), dice=Random(f"{seed}/live/{name}")),
        )
    for name in ("serve_failpoints", "router_failpoints"):
        yield f"live-{name.replace('_', '-')}", getattr(live, name)


def play(
    scenario: Scenario, folder: Path, *, orders: int = 6471, qps: int = 45
) -> tuple[Night, Verdict, float]:
    """One night from the start to its verdict, and the seconds from the last disturbance to the last outcome."""
    with night(folder, orders=orders, qps=qps) as stage:
        scenario(stage)
        disturbed = time.monotonic()
        stage.drained()
        seconds = time.monotonic() - disturbed
        verdict = stage.verdict()
        codes = stage.stop()
    if any(codes):
        verdict = replace(verdict, broken=(*verdict.broken, f"left with {codes} after SIGTERM"))
    return stage, verdict, seconds


def main() -> int:
    """Play all, print the table, say what broke."""
    parser = argparse.ArgumentParser(description="Kill things, then compare the three ledgers.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--only", default="", help="only scenarios whose name begins so")
    parser.add_argument("--keep", action="store_true", help="keep every night's folder")
    arguments = parser.parse_args()
    # Unwinds, so that no process of a night stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    base = Path(tempfile.mkdtemp(prefix="madeira-chaos-"))
    console = Console(width=None if sys.stdout.isatty() else 170)
    console.print(f"seed {arguments.seed}; nights are in {base}")
    table = Table(*_COLUMNS)
    failures: list[str] = []
    begun = time.monotonic()
    for name, scenario in listed(arguments.kills, arguments.seed):
        if not name.startswith(arguments.only):
            continue
        folder = base / name
        started = time.monotonic()
        try:
            # Fewer orders beside live events: what takes time there is what is done to them.
            orders, qps = (2600, 30) if name.startswith("live-") else (6471, 45)
            _, verdict, seconds = play(scenario, folder, orders=orders, qps=qps)
        except Broken as error:
            failures.append(f"{name}: {error}")
            table.add_row(name, *["?"] * 12, "-")
            console.print(f"{name}: {error}", style="red")
            continue
        table.add_row(*_row(name, verdict, seconds))
        console.print(
            f"{name}: {time.monotonic() - started:.0f} s, {'; '.join(verdict.broken) or 'kept'}",
            highlight=False,
        )
        if verdict.broken:
            failures.append(f"{name}: {'; '.join(verdict.broken)} (see {folder})")
        elif not arguments.keep:
            shutil.rmtree(folder)
    console.print(table)
    console.print(f"{time.monotonic() - begun:.0f} s, seed {arguments.seed}")
    for failure in failures:
        console.print(failure, style="bold red")
    if not failures and not arguments.keep:
        shutil.rmtree(base)
    return 1 if failures else 0


def _row(name: str, v: Verdict, seconds: float) -> tuple[str, ...]:
    return (
        name, f"{v.orders:,}", f"{v.live:,}", f"{v.delivered:,}", str(v.dead), str(v.open), str(v.lost),
        str(v.forgotten), str(v.flagged),
        str(v.twice), str(v.twice_unflagged), f"{v.over_qps:.2f}", str(v.reconcile_exit), f"{seconds:.0f} s",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

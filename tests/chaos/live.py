"""What is done to a night with live events beside its batch. As in scenarios.py, the dice come from who calls."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import psycopg
import redis

from streams.keys import ROUTERS, Keys
from tests.chaos.night import Broken, Night

SERVE_FAILPOINTS = (
    "intake-after-commit:40",
    "intake-after-ingest:60",
    "intake-after-commit:1",
    "intake-after-ingest:1",
)
ROUTER_FAILPOINTS = ("route-after-read:5", "route-after-commit:5", "route-after-feed:5", "route-after-ack:5")


def _open(stage: Night, *, workers: int = 2, rate: float = 60.0) -> None:
    """A batch under way, and live events that come beside it."""
    for _ in range(workers):
        stage.start("work")
    stage.serve()
    stage.load_whole()
    stage.open_shop(rate)
    stage.sold(60)


def serve_failpoints(stage: Night, names: Sequence[str] = SERVE_FAILPOINTS, *, sold: int = 600) -> None:
    """`serve` dies when the event is in a store and its sender has no answer; the next one is told *duplicate*."""
    stage.start("work")
    stage.load_whole()
    stage.open_shop()
    for name in names:
        stage.until(lambda name=name: stage.died(stage.serve(failpoint=name)), f"{name} kills")  # type: ignore[misc]
    stage.serve()
    stage.sold(sold)


def router_failpoints(stage: Night, names: Sequence[str] = ROUTER_FAILPOINTS) -> None:
    """One router after the other dies between two of its steps; what it had in hand is claimed or swept."""
    stage.serve()
    stage.load_whole()
    stage.open_shop()
    for name in names:
        stage.until(lambda name=name: stage.died(stage.start("work", failpoint=name)), f"{name} kills")  # type: ignore[misc]
    # Redis is away for a moment, so something is left to sweep.
    stage.kill_valkey()
    stage.forgets = True
    name = "sweep-after-feed"
    stage.until(lambda: stage.died(stage.start("work", failpoint=name)), f"{name} kills")
    stage.start("work")


def kills(stage: Night, dice: Random) -> None:
    """Every kind of process is killed once or twice, a few seconds apart, under load."""
    workers = [stage.start("work"), stage.start("work")]
    door = stage.serve()
    stage.load_whole()
    stage.open_shop()
    stage.sold(60)
    stage.forgets = True
    for kind in dice.sample(("serve", "worker", "valkey", "postgres", "serve", "worker"), 6):
        time.sleep(dice.uniform(0.3, 3.0))
        match kind:
            case "serve":
                stage.kill(door)
                door = stage.serve()
            case "worker":
                victim = dice.randrange(len(workers))
                stage.kill(workers[victim])
                workers[victim] = stage.start("work")
            case "valkey":
                stage.kill_valkey()
            case _:
                stage.kill_postgres()
    stage.sold(len(stage.shop.sold) + 200 if stage.shop else 0)


def emptied(stage: Night, dice: Random) -> None:
    """FLUSHALL under load, twice; then only the inbound groups are destroyed."""
    _open(stage)
    stage.forgets = True
    for _ in range(2):
        stage.sold(_more(stage, dice.randrange(60, 200)))
        stage.flush()
    stage.sold(_more(stage, 120))
    for shard in Keys().inbound:
        with suppress(redis.ResponseError):  # the flush took the shard, and nobody has posted to it since
            stage.ask_redis("XGROUP", "DESTROY", shard.stream, ROUTERS)
    stage.sold(_more(stage, 120))


def full(stage: Night, dice: Random) -> None:
    """Redis comes to its memory limit: both sources are told 503, and it goes on when there is room."""
    _open(stage)
    stage.ask_redis("CONFIG", "SET", "maxmemory", 1_500_000)
    time.sleep(dice.uniform(3.0, 6.0))
    before = _more(stage, 0)
    time.sleep(2.0)
    if _more(stage, 0) - before > 128:
        raise Broken("events were taken by a full Redis")
    stage.ask_redis("CONFIG", "SET", "maxmemory", 0)
    stage.sold(_more(stage, 200))


def frozen(stage: Night, dice: Random) -> None:
    """Redis stands still for 5 s, then PostgreSQL; then all of PostgreSQL's sessions are cut."""
    _open(stage)
    for postgres in dice.sample((False, True), 2):
        stage.freeze(5.0, postgres=postgres)
        stage.sold(_more(stage, 120))
    for _ in range(3):
        time.sleep(dice.uniform(0.2, 1.0))
        with suppress(psycopg.Error):
            stage.cut_postgres()
    stage.sold(_more(stage, 120))


def taken_out(stage: Night, dice: Random) -> None:
    """A partner is taken out with sends under way, Redis is killed, and the partner is put back."""
    _open(stage)
    stage.forgets = True
    whole = (stage.folder / "jobs.toml").read_text()
    stage.sold(_more(stage, dice.randrange(20, 120)))
    stage.configure(lambda text: re.sub(r"(?s)\n\[partners\.QR\].*?(?=\n\[|$)", "", text))
    stage.sold(_more(stage, dice.randrange(120, 300)))
    stage.kill_valkey()
    stage.sold(_more(stage, dice.randrange(60, 200)))
    stage.configure(lambda _: whole)
    stage.sold(_more(stage, 300))
    stage.close_shop()
    # What came for it meanwhile found no partner.
    if stage.start("unroutable", "route").wait(60):
        raise Broken(f"events are still unroutable: see {stage.folder}")


def reloaded(stage: Night, dice: Random) -> None:
    """The rate is changed twice, and jobs.toml is bad while Redis is recovered."""
    _open(stage)
    slower, faster = stage.qps - 15, stage.qps
    stage.qps_changed = slower, faster
    stage.configure(lambda text: text.replace(f"qps = {faster}", f"qps = {slower}"))
    stage.sold(_more(stage, 120))
    stage.configure(lambda text: text.replace(f"qps = {slower}", f"qps = {faster}"))
    whole = (stage.folder / "jobs.toml").read_text()
    stage.sold(_more(stage, 60))
    stage.forgets = True
    stage.kill_valkey()
    stage.configure(lambda _: "this is no configuration")
    stage.sold(_more(stage, 120))
    stage.kill_valkey()
    stage.configure(lambda _: re.sub(r"max_attempts = 50", "max_attempts = 60", whole))
    stage.sold(_more(stage, 120))


def _more(stage: Night, count: int) -> int:
    """So many more than have been sold until now."""
    return count + (0 if stage.shop is None else len(stage.shop.sold))

"""What is done to a night. Each scenario is a function over the stage; the dice are seeded by who calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random

from tests.chaos.night import Broken, Night

KINDS = ("loader", "worker", "scheduler", "valkey", "postgres")

WORKER_FAILPOINTS = (
    "feed-after-upto", "feed-after-xadd", "take-after:3", "send-before:40", "send-after:40", "settle-after:5",
    "record-before-commit:3", "record-after-commit:3",
)  # fmt: skip
LOADER_FAILPOINTS = ("load-after-stage", "load-before-commit", "load-after-commit")
RECOVERY_FAILPOINTS = ("recover-after-fence", "recover-after-drop")


def kills(stage: Night, dice: Random, kinds: Sequence[str]) -> None:
    """One kill of each kind at a random moment, the next process started soon after. The loader's comes first."""
    workers = [stage.start("work"), stage.start("work")]
    if "loader" in kinds:
        loader = stage.load()
        time.sleep(dice.uniform(0.2, 2.5))
        stage.kill(loader)
    scheduler = stage.start("schedule")
    stage.until(stage.counts, "the batch is released", patience_s=150)
    moments = sorted((dice.uniform(0.0, 11.0), kind) for kind in kinds if kind != "loader")
    begun = time.monotonic()
    for moment, kind in moments:
        time.sleep(max(0.0, begun + moment - time.monotonic()))
        match kind:
            case "worker":
                victim = dice.randrange(len(workers))
                stage.kill(workers[victim])
                time.sleep(dice.uniform(0.1, 1.0))
                workers[victim] = stage.start("work")
            case "scheduler":
                stage.kill(scheduler)
                scheduler = stage.start("schedule")
            case "valkey":
                stage.kill_valkey()
            case _:
                stage.kill_postgres()


def scheduler_at_work(stage: Night, dice: Random) -> None:
    """The scheduler is killed while it loads; another one goes on."""
    stage.start("work")
    first = stage.start("schedule")
    time.sleep(dice.uniform(0.8, 3.0))
    stage.kill(first)
    stage.start("schedule")
    stage.start("schedule")
    stage.until(stage.counts, "the batch is released", patience_s=150)


def flushed(stage: Night, dice: Random) -> None:
    """FLUSHALL in mid-drain, and once more while recovery is on its way or just done."""
    stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(dice.randrange(stage.orders // 6, stage.orders // 2))
    stage.flush()
    time.sleep(dice.uniform(0.1, 3.0))
    stage.flush()


def flushed_and_killed(stage: Night, dice: Random) -> None:
    """A worker is killed and Redis emptied at the same moment: nobody is left who knows what was sent."""
    victim = stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(dice.randrange(stage.orders // 6, stage.orders // 2))
    stage.kill(victim)
    stage.flush()


def worker_failpoints(stage: Night, names: Sequence[str] = WORKER_FAILPOINTS) -> None:
    """One worker after the other dies at its failpoint; the last one does the rest."""
    stage.load_whole()
    for name in names:
        stage.until(lambda name=name: stage.died(stage.start("work", failpoint=name)), f"{name} kills")  # type: ignore[misc]
    stage.start("work")


def loader_failpoints(stage: Night, names: Sequence[str] = LOADER_FAILPOINTS) -> None:
    """The loader dies at each step, and is run again; in the morning reconcile dies before it publishes."""
    stage.start("work")
    for name in names:
        stage.until(lambda name=name: _reached(stage, name), f"{name} kills", every=0.5)  # type: ignore[misc]
    stage.load_whole()
    stage.drained()
    report = stage.start("reconcile", "--date", stage.day.isoformat(), failpoint="reconcile-before-rename")
    if not stage.died(report):
        raise Broken(f"reconcile did not come to its failpoint: see {stage.folder}")


def _reached(stage: Night, name: str) -> bool:
    """Whether the loader came as far as its failpoint; it is refused while the dead one's lease lasts."""
    process = stage.load(failpoint=name)
    if process.wait(60) == 2:
        return False
    return stage.died(process)


def recovery_failpoints(stage: Night, names: Sequence[str] = RECOVERY_FAILPOINTS) -> None:
    """Valkey is killed in mid-drain, then who recovers, at each step of it."""
    first = stage.start("work")
    stage.load_whole()
    stage.received(stage.orders // 5)
    stage.kill(first)
    for name in names:
        stage.kill_valkey()
        stage.until(lambda name=name: stage.died(stage.start("work", failpoint=name)), f"{name} kills")  # type: ignore[misc]
    stage.start("work")


def both_stores(stage: Night, dice: Random) -> None:
    """Both stores and a worker die within a second."""
    victim = stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(dice.randrange(stage.orders // 6, stage.orders // 2))
    for act in dice.sample([stage.kill_valkey, stage.kill_postgres, lambda: stage.kill(victim)], 3):
        act()
    stage.start("work")


Scenario = Callable[[Night], object]

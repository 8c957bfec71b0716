"""Three short nights of `make chaos`: what is killed differs, what must hold at the end does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.night import Night
from tests.chaos.run import play

ORDERS = 1300


def _stores(stage: Night) -> None:
    """Both stores are killed one after the other, while two workers send."""
    stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(ORDERS // 4)
    stage.kill_postgres()
    stage.received(ORDERS // 2)
    stage.kill_valkey()


def _worker(stage: Night) -> None:
    """A worker dies with its sends under way, and nobody takes its place but the other one."""
    victim = stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(ORDERS // 4)
    stage.kill(victim)


def _emptied(stage: Night) -> None:
    """FLUSHALL in mid-drain."""
    stage.start("work")
    stage.start("work")
    stage.load_whole()
    stage.received(ORDERS // 3)
    stage.flush()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [_stores, _worker, _emptied])
def test_nothing_is_lost_and_nothing_comes_twice_unflagged(
    tmp_path: Path, scenario: Callable[[Night], None]
) -> None:
    """Source, Madeira and banks agree to the cent after it; see `Night.verdict` for all that is compared."""
    _, verdict, _ = play(scenario, tmp_path / "night", orders=ORDERS, qps=25)
    assert verdict.broken == ()
    assert verdict.delivered + verdict.dead == ORDERS

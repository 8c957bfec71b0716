"""Deliveries that came to nothing, as nights and live events leave them, for tests of what operators do with them."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.cancel import Cancel
from pipelines.replay import Replay
from pipelines.route import Route
from streams.delivery import Kind, State
from streams.scripts import Entry
from tests.pipelines.night import Night, attempt, settlement


async def fed(night: Night, generation: int = 1) -> int:
    """Everything that can be is in Redis; answers how much of it came there now."""
    total = 0
    while count := await night.feeder.step(generation):
        total += count
    return total


async def taken(night: Night, *, name: str = "AB", generation: int = 1, limit: int = 100) -> list[Entry]:
    """Everything that waits is in the worker's hand, in the order in which it would be sent."""
    found: list[Entry] = []
    while some := await night.take(limit, name=name, generation=generation):
        found += some
    return found


async def end(
    night: Night,
    entries: Sequence[Entry],
    state: State,
    *,
    outcome: Kind | None = None,
    name: str = "AB",
    generation: int = 1,
) -> None:
    """These attempts ended so, and it is recorded."""
    await night.settle(
        *(
            settlement(
                entry,
                attempt(
                    entry, state, outcome=outcome, name=name, generation=generation,
                    number=entry.attempts + 1, possible_duplicate=entry.possible_duplicate,
                ),
            )
            for entry in entries
        ),
        name=name, generation=generation,
    )  # fmt: skip
    while await night.recorder.step():
        pass


async def dead(night: Night, rows: int, *, name: str = "AB", outcome: Kind | None = None) -> int:
    """A night whose rows the partner refused (or left unknown); answers the batch."""
    batch = await night.release(rows, name)
    await fed(night)
    await end(night, await taken(night, name=name), State.DEAD, outcome=outcome, name=name)
    return batch


def replay(night: Night, *routes: Route, confirm_first: Sequence[str] = ()) -> Replay:
    """What `madeira dead replay` uses."""
    return Replay(night.pool, night.partners, routes, confirm_first=confirm_first)


def cancel(night: Night) -> Cancel:
    """What `madeira cancel` uses."""
    return Cancel(night.pool, night.transit, night.partners)

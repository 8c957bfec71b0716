"""Dispatch: takes slots from Redis, sends at their moment, settles what came of it.

One `Dispatcher` per worker process, one outbox per partner in it; outboxes come and go with jobs.toml. Its steps
are repeated by `madeira/runtime.py`: `take` asks for slots and starts the sends, `settle` hands in what has ended,
`follow` goes over to a new generation, `beat` keeps the lease. Nothing here decides when a partner may be sent to:
that is `take`'s answer, and a send that misses its moment gives the slot up and keeps the entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Protocol

import msgspec

from pipelines.attempt import Ended, Hand, legible, policy_of, settle_answer, settle_unforeseen
from sinks.answer import Answer, Failed, SlotMissed
from sinks.partner import Partner
from sinks.webhook import Send
from streams import gauges, lanes, leases
from streams.checkpoint import checkpoint
from streams.delivery import Attempt
from streams.envelope import Envelope
from streams.errors import StaleGeneration, StoreUnavailable
from streams.keys import PartnerKeys
from streams.moves import Sign
from streams.pace import ClockMap
from streams.retry import RetryPolicy
from streams.scripts import Entry, PaceState, Place, Settlement, Take
from streams.transit import Transit

log = logging.getLogger(__name__)

HORIZON = timedelta(milliseconds=50)
_LEAST_LEAD = timedelta(milliseconds=2)
_LONGEST_LEAD = HORIZON / 2
IDLE_S = 0.05
"""How long a partner is left alone that has nothing to send."""
SETTLE_AT_MOST = 200
_GATHER_S = 0.003
"""How long the first outcome waits for others, so that one call settles many."""
TAKE_AT_MOST = 100
_FIRST_BURST = 24
_LEAST_BURST = 4


class Sends(Protocol):
    """What dispatch needs of the HTTP engine."""

    async def send(self, request: Send) -> Answer | Failed | SlotMissed:
        """Send one request at its slot's moment; never raises for what a partner does."""


class Meter(Protocol):
    """Who counts what became of sends."""

    def settled(self, partner: str, lane: str, attempt: Attempt) -> None:
        """A send of this lane (`live`, `batch:…`) ended so: called once for each. Quick, and never raises."""


class Held(msgspec.Struct, frozen=True):
    """An entry that is ours under `generation` and was not sent yet."""

    entry: Entry
    envelope: Envelope
    generation: int


@dataclass(slots=True)
class Outbox:
    """What this worker has in hand for one partner."""

    partner: Partner
    policy: RetryPolicy
    keys: PartnerKeys
    held: dict[Place, Held] = field(default_factory=dict)
    sending: dict[Place, asyncio.Task[None]] = field(default_factory=dict)
    ended: list[Settlement] = field(default_factory=list)
    unrecorded: dict[str, tuple[str, Settlement]] = field(default_factory=dict)
    """By attempt id: the entry in the outcome stream and what was settled, until PostgreSQL has it."""
    doubtful: bool = False
    """Redis may have us down for entries that we don't know of, or not for some that we hold."""
    blocked: bool = False
    """`take` waits for room; then a send that ends sets `room`."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    pushed_s: float = 0.0
    """How far the partner's slots were moved away for late sends, for slots up to `pushed_until`."""
    pushed_until: float = 0.0
    settle_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to settle."""
    lead: timedelta = _LEAST_LEAD
    """How long before the first slot it is asked for."""
    broken: bool = False
    """The partner's breaker was open at the last take; for the meter, settle goes by what Redis knows."""
    missed: bool = False
    """A slot of this partner was missed since the last take."""
    taking: bool = False
    """A take is under way, whose reply may put something into our hand."""
    leaving: bool = False
    """Takes no more; gone once nothing is in its hand."""

    @property
    def empty(self) -> bool:
        """Whether nothing is in its hand, and all that was is recorded."""
        return not (
            self.taking or self.doubtful or self.held or self.sending or self.ended or self.unrecorded
        )


class Dispatcher:
    """One worker: its identity, its lease, and an outbox for each partner.

    `at_once` bounds the sends that are under way in this process over all partners.
    """

    def __init__(
        self,
        transit: Transit,
        sends: Sends,
        partners: Mapping[str, Partner],
        *,
        worker: str,
        generation: int,
        at_once: int = 400,
        meter: Meter | None = None,
    ) -> None:
        self._meter = meter
        self._transit = transit
        self._sends = sends
        self._loop = asyncio.get_running_loop()
        self._clock = ClockMap()
        self._at_once = at_once
        self._under_way = 0
        self._burst = _FIRST_BURST
        self._missed = 0
        self._postponing: set[asyncio.Task[None]] = set()
        self._lease_until = 0.0
        self._leaving = False
        self.worker = worker
        self.generation = generation
        self.outboxes: dict[str, Outbox] = {}
        for partner in partners.values():
            self.open(partner)

    @property
    def in_flight(self) -> int:
        """Sends that are under way or ended and not settled, over all partners."""
        return sum(len(box.sending) + len(box.ended) for box in self.outboxes.values())

    @property
    def unrecorded(self) -> int:
        """Settled outcomes that PostgreSQL is not yet known to have."""
        return sum(len(box.unrecorded) for box in self.outboxes.values())

    # -- partners ------------------------------------------------------------------------------------------

    def open(self, partner: Partner) -> None:
        """Send to this partner from now on; whom we send to already, by these values from the next send on.

        The tenant of an outbox does not change: its keys are named by it.
        """
        box = self.outboxes.get(partner.name)
        if box is None:
            keys = self._transit.keys.partner(partner.name, partner.tenant)
            self.outboxes[partner.name] = Outbox(partner, policy_of(partner), keys)
        else:
            assert box.partner.tenant == partner.tenant
            box.partner, box.policy, box.leaving = partner, policy_of(partner), False

    def close(self, name: str) -> None:
        """Take no more for this partner. Its sends go on; `drop_closed` ends the rest."""
        self.outboxes[name].leaving = True

    async def drop_closed(self) -> list[str]:
        """Give back what closed outboxes did not send; drop those with nothing left, and name them."""
        for box in [box for box in self.outboxes.values() if box.leaving]:
            await self._give_back(box)
            await self._learn_recorded(box)
        # All in one go with their naming: nobody finds one gone whose steps still run. One that was opened again
        # meanwhile, or that a heartbeat made doubtful, goes later.
        dropped = [name for name, box in self.outboxes.items() if box.leaving and box.empty]
        for name in dropped:
            del self.outboxes[name]
        return dropped

    def wake(self, name: str) -> None:
        """There is something new to send to this partner."""
        if name in self.outboxes:
            self.outboxes[name].room.set()

    # -- identity -----------------------------------------------------------------------------------------

    async def begin(self, worker: str) -> None:
        """Take a lease under a new id; what an older id held unsent is dropped, sends and outcomes are kept.

        Whoever finds the old lease gone reaps what was dropped: it may have been sent for all he knows.
        """
        for box in self.outboxes.values():
            box.held.clear()
        asked = monotonic()
        await leases.acquire(self._transit, worker)
        self.worker = worker
        self._lease_until = asked + leases.LEASE.total_seconds()

    async def beat(self) -> bool:
        """Renew the lease; False when it was lost: then `begin` again under another id."""
        asked = monotonic()
        for box in self.outboxes.values():
            box.doubtful = True  # a take whose reply was lost may have been carried out after we looked
        if await leases.renew(self._transit, self.worker):
            self._lease_until = asked + leases.LEASE.total_seconds()
            return True
        self._lease_until = 0.0
        log.warning("lease_lost", extra={"fields": {"worker": self.worker}})
        return False

    def follow(self, generation: int) -> bool:
        """Go over to PostgreSQL's generation; True when all that was in hand is handed in under it.

        Unsent entries are dropped, every outcome that may not be recorded is settled again.
        """
        if generation > self.generation:
            self.generation = generation
            for box in self.outboxes.values():
                box.held.clear()
                box.ended[:0] = [settlement for _, settlement in box.unrecorded.values()]
                box.unrecorded.clear()
                box.settle_due.set()
        return self.in_flight == 0

    # -- taking -------------------------------------------------------------------------------------------

    async def take(self, name: str) -> float:
        """Ask for slots of one partner and start their sends. Returns seconds until asking again makes sense."""
        box = self.outboxes[name]
        box.room.clear()
        box.blocked = False
        if self._leaving or box.leaving or monotonic() >= self._lease_until:
            return IDLE_S
        self._adapt(box)
        room = min(self._burst, self._at_once - self._under_way, box.partner.max_in_flight - len(box.sending))
        # A little room is not worth a round trip: wait for a quarter, so that takes stay batches.
        if room * 4 < min(box.partner.max_in_flight, self._at_once, self._burst):
            box.blocked = True
            return IDLE_S
        box.taking = True
        try:
            return await self._take(box, room)
        finally:
            box.taking = False

    async def _take(self, box: Outbox, room: int) -> float:
        try:
            if box.doubtful:
                await self._adopt(box)
            generation, worker = self.generation, self.worker
            asked = monotonic()
            take = await self._transit.scripts.take(
                box.keys,
                generation=generation,
                worker=worker,
                limit=room,
                horizon=HORIZON,
                lead=box.lead,
                held=list(box.held)[:room],
            )
        except StaleGeneration:
            box.doubtful = True
            return IDLE_S
        except BaseException:
            box.doubtful = True
            raise
        answered = monotonic()
        checkpoint("take-after")
        if (generation, worker) != (self.generation, self.worker):
            # We may have said by now that nothing is in our hand: what this reply gives is not sent.
            box.doubtful = True
            return IDLE_S
        self._clock = self._clock.narrowed(asked=asked, answered=answered, redis_us=take.now_us)
        _forget_recorded(box, take.recorded)
        box.broken = take.state is PaceState.BROKEN
        self._start(box, take, generation)
        if take.state is PaceState.FULL:
            box.blocked = True
            return IDLE_S
        delay = self._clock.local(take.next_us) - monotonic()
        return max(0.0, min(1.0, delay)) if take.slots else max(IDLE_S, min(1.0, delay))

    def _adapt(self, box: Outbox) -> None:
        """Learn from missed slots how much this process can begin at once, and how long before its slot a partner
        must be asked for.

        Found by trying: half as many and more time after a miss, a little more and less after each take without one.
        A partner that is slow to connect to needs more time itself, and makes nobody else begin less.
        """
        if self._missed:
            self._burst = max(_LEAST_BURST, self._burst // 2)
        else:
            self._burst = min(TAKE_AT_MOST, self._burst + 1)
        if box.missed:
            box.lead = min(_LONGEST_LEAD, box.lead * 2)
        else:
            box.lead = max(_LEAST_LEAD, box.lead * 0.98)
        self._missed, box.missed = 0, False

    def _start(self, box: Outbox, take: Take, generation: int) -> None:
        fresh = False
        for slot in take.slots:
            held = box.held.pop(slot.place, None)
            if held is None:
                if slot.entry is None:
                    # Dropped while we were asking: the reply is for a hand that no longer holds it.
                    box.doubtful = True
                    continue
                fresh = True
                envelope = legible(box.partner, slot.entry)
                if envelope is None:
                    continue
                held = Held(slot.entry, envelope, generation)
            self._under_way += 1
            box.sending[slot.place] = self._loop.create_task(self._deliver(box, held, slot.start_us))
        if fresh and box.held:
            # What we hold goes first; fresh entries beside leftovers mean that those are no longer ours.
            box.doubtful = True

    async def _deliver(self, box: Outbox, held: Held, start_us: int) -> None:
        checkpoint("send-before")
        worker = self.worker  # the lease may be lost and another id begun before the answer comes
        start = self._clock.local(start_us)
        try:
            answer = await self._sends.send(
                Send(
                    partner=box.partner,
                    envelope=held.envelope,
                    attempt=held.entry.attempts + 1,
                    start=start,
                    timestamp_s=start_us // 1_000_000,
                    late=partial(self._late, box),
                )
            )
            checkpoint("send-after")
            if isinstance(answer, SlotMissed):
                self._missed += not answer.connecting
                box.missed = True
                if held.generation == self.generation:
                    box.held[held.entry.place] = held
            else:
                hand = Hand(box.partner, box.policy, held.entry, held.envelope, held.generation, worker)
                ended = self._judge(hand, answer, start)
                box.ended.append(ended.settlement)
                box.settle_due.set()
                if self._meter is not None:
                    attempt = ended.spared if box.broken and ended.spared is not None else ended.attempt
                    self._meter.settled(box.partner.name, held.entry.place.lane, attempt)
        finally:
            self._under_way -= 1
            del box.sending[held.entry.place]
            if box.blocked:
                box.room.set()

    def _judge(self, hand: Hand, answer: Answer | Failed, start: float) -> Ended:
        """What to settle after a send, whatever the partner said.

        A send that is never settled would be adopted as unsent and go out again, with nobody told.
        """
        try:
            return settle_answer(hand, answer, start=start, clock=self._clock)
        except Exception as error:
            fields = {"partner": hand.partner.name, "trace_id": hand.envelope.trace_id}
            log.exception("answer_unforeseen", extra={"fields": fields})
            return settle_unforeseen(hand, answer, error, start=start, clock=self._clock)

    def _late(self, box: Outbox, by_s: float) -> None:
        """A send was checked in time and stamped too late: this process lost the processor in between.

        By the stamps, the second that begins with it would hold one send too many unless the next ones move away.
        Those of one stall move them once, by the largest of their delays.
        """
        now = monotonic()
        if now - by_s >= box.pushed_until:
            box.pushed_s = 0.0
        owed_s = by_s - box.pushed_s
        if owed_s <= 0:
            return
        box.pushed_s += owed_s
        box.pushed_until = now + HORIZON.total_seconds()
        task = self._loop.create_task(self._postpone(box, timedelta(seconds=owed_s)))
        self._postponing.add(task)
        task.add_done_callback(self._postponing.discard)

    async def settled_pace(self) -> None:
        """Return when every postponement that is under way has reached Redis."""
        await asyncio.gather(*self._postponing)

    async def _postpone(self, box: Outbox, by: timedelta) -> None:
        # No Redis, no slots: the second is over before there are any again.
        with suppress(StaleGeneration, StoreUnavailable):
            await self._transit.scripts.postpone(box.keys, generation=self.generation, by=by)

    async def _adopt(self, box: Outbox) -> None:
        """Make `held` what Redis says is pending under this worker and neither under way nor ended."""
        generation, worker = self.generation, self.worker
        pending = await lanes.adopt(self._transit, box.keys, worker=worker)
        if (generation, worker) != (self.generation, self.worker):
            return  # still doubtful: what was pending then is another hand's
        busy = box.sending.keys() | {settlement.place for settlement in box.ended}
        box.held = {
            entry.place: Held(entry, envelope, generation)
            for entry in pending
            if entry.place not in busy and (envelope := legible(box.partner, entry)) is not None
        }
        box.doubtful = False

    # -- settling -----------------------------------------------------------------------------------------

    async def settle(self, name: str) -> float:
        """Hand in what has ended, at most `SETTLE_AT_MOST` at once. Returns seconds until the next look.

        After an error the same outcomes are handed in again: a second time only adds late copies, which the
        recorder knows by their attempt ids.
        """
        box = self.outboxes[name]
        box.settle_due.clear()
        if 0 < len(box.ended) < SETTLE_AT_MOST // 4 and box.sending:
            await asyncio.sleep(_GATHER_S)
        batch = box.ended[:SETTLE_AT_MOST]
        if not batch:
            return 1.0
        generation = self.generation
        try:
            settled = await self._transit.scripts.settle(box.keys, generation=generation, settlements=batch)
        except StaleGeneration:
            return 4 * IDLE_S
        checkpoint("settle-after")
        if settled.turned is not None:
            _log_breaker(box.partner.name, settled.turned, batch)
        if generation != self.generation:
            return 0.0  # `follow` came in between: all of it is handed in again under the new one
        del box.ended[: len(batch)]
        for settlement, outcome_id in zip(batch, settled.outcome_ids, strict=True):
            box.unrecorded[settlement.attempt_id] = (outcome_id, settlement)
        if box.blocked:
            box.room.set()  # Redis counts what is in hand until it is settled
        return 0.0 if box.ended else 1.0

    # -- leaving ------------------------------------------------------------------------------------------

    async def leave(self) -> int:
        """Take no more and give back what was not sent; returns how many. Sends under way go on.

        Repeat it: a send that misses its slot meanwhile is held again.
        """
        self._leaving = True
        given_back = 0
        for box in list(self.outboxes.values()):
            given_back += await self._give_back(box)
        return given_back

    async def _give_back(self, box: Outbox) -> int:
        if box.doubtful:
            await self._adopt(box)
        places = list(box.held)
        if not places:
            return 0
        given_back = await self._transit.scripts.give_back(
            box.keys, generation=self.generation, places=places
        )
        for place in places:
            box.held.pop(place, None)
        return given_back

    async def learn_recorded(self) -> int:
        """Ask how far outcomes are recorded, when no take does; returns how many settled ones are not."""
        for box in list(self.outboxes.values()):
            await self._learn_recorded(box)
        return self.unrecorded

    async def _learn_recorded(self, box: Outbox) -> None:
        if box.unrecorded:
            _forget_recorded(box, (await gauges.gauge(self._transit, box.keys)).recorded)

    async def end(self) -> None:
        """Give the lease up, after everything was handed in."""
        self._lease_until = 0.0
        await leases.end(self._transit, self.worker)


def _log_breaker(partner: str, turned: str, batch: Sequence[Settlement]) -> None:
    """One line each time that a partner's breaker opens or closes: settle tells one worker only."""
    if turned == "opened":
        reasons = [settlement.reason for settlement in batch if settlement.sign is Sign.FAILED]
        log.warning("breaker_opened", extra={"fields": {"partner": partner, "reason": reasons[-1]}})
    else:
        log.info("breaker_closed", extra={"fields": {"partner": partner}})


def _forget_recorded(box: Outbox, recorded: str) -> None:
    upto = _as_numbers(recorded)
    done = []
    for attempt_id, (outcome_id, _) in box.unrecorded.items():
        if _as_numbers(outcome_id) > upto:
            break
        done.append(attempt_id)
    for attempt_id in done:
        del box.unrecorded[attempt_id]


def _as_numbers(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)

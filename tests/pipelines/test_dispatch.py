"""Dispatch on real servers and a real bank: what is in hand is sent once, and every outcome is handed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from madeira.bank_ledger import Bank
from pipelines.dispatch import IDLE_S, Dispatcher
from sinks.answer import Answer, Failed, SlotMissed
from sinks.webhook import Send, Webhook
from streams import leases
from streams.delivery import Kind, State
from streams.errors import StaleGeneration
from streams.gauges import gauge, now_us
from streams.scripts import Feed
from tests.pipelines.night import WORKER
from tests.pipelines.shift import FORGIVING, STRICT, Shift, shift


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> AsyncIterator[Shift]:
    """A dispatcher and a bank that behaves well."""
    async with shift(database_url, redis_url, key_prefix, tmp_path) as found:
        yield found


async def test_take_send_settle(stage: Shift) -> None:
    """What is taken reaches the bank, and the outcome stream holds the whole attempt."""
    batch = await stage.order(2)
    await stage.turn()
    assert sorted(await stage.received()) == [f"payment-orders:{batch}:1", f"payment-orders:{batch}:2"]
    (first, mark), (second, _) = sorted(await stage.outcomes(), key=lambda found: found[0].attempt_id)
    assert mark == ""
    assert first.attempt_id == f"AB/1/batch:{batch}/1-1"
    assert (first.outcome, first.state, first.status_code, first.number) == (
        Kind.SUCCEEDED,
        State.SUCCEEDED,
        200,
        1,
    )
    assert (first.worker, first.excerpt, first.trace_id) == (WORKER, '{"success": true}', "t1")
    assert first.sent_at is not None
    assert first.started_at < second.started_at < first.sent_at + FORGIVING
    assert stage.dispatcher.in_flight == 0
    assert await stage.pending() == 0


async def test_slots_are_not_undercut(stage: Shift) -> None:
    """By Redis's clock no headers leave before the slot that take gave."""
    await stage.order(20)
    await stage.turn()
    attempts = [attempt for attempt, _ in await stage.outcomes()]
    assert len(attempts) == 20
    assert all(a.sent_at is not None and a.sent_at >= a.started_at for a in attempts)


async def test_a_missed_slot_keeps_the_entry(stage: Shift) -> None:
    """Nothing leaves, no attempt is counted, and a later slot sends it as the first attempt."""
    await stage.order(3)
    stage.lateness(STRICT)
    await stage.turn()
    assert (await stage.received(), await stage.outcomes()) == ([], [])
    assert len(stage.box.held) == 3

    stage.lateness(FORGIVING)
    await stage.turn()
    assert len(await stage.received()) == 3
    assert [a.number for a, _ in await stage.outcomes()] == [1, 1, 1]
    assert stage.box.held == {}
    assert [entry.attempt for entry in stage.banks.entries()] == ["1", "1", "1"]


async def test_a_lost_reply_is_adopted(stage: Shift) -> None:
    """What Redis handed out without our knowing is found at the next beat, and sent once."""
    batch = await stage.order(2)
    await stage.night.take(2)  # under this worker's name: the reply that never came
    await stage.turn()
    assert await stage.received() == []

    assert await stage.dispatcher.beat()
    await stage.turn()
    assert sorted(await stage.received()) == [f"payment-orders:{batch}:{n}" for n in (1, 2)]


class _Unreadable:
    """Sends, counts, and gives back an answer that nothing here can handle."""

    sent = 0

    async def send(self, request: Send) -> Answer:
        """An answer without a body."""
        self.sent += 1
        return Answer(200, None, cast("bytes", None), False, request.start, request.start)


async def test_an_answer_that_cannot_be_judged_is_settled(stage: Shift) -> None:
    """Whatever goes wrong between answer and outcome, the send is unknown; it never goes out again unflagged."""
    sends = _Unreadable()
    dispatcher = Dispatcher(stage.night.transit, sends, stage.partners, worker=WORKER, generation=1)
    await dispatcher.begin(WORKER)
    await stage.order(1)
    for _ in range(2):
        await dispatcher.take("AB")
        await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())
        await dispatcher.settle("AB")
        await dispatcher.beat()
    ((attempt, _),) = await stage.outcomes()
    assert (attempt.outcome, attempt.may_have_arrived) == (Kind.UNKNOWN, True)
    assert attempt.reason == "the answer could not be judged: TypeError"
    assert sends.sent == 1


async def test_what_is_under_way_is_not_adopted(stage: Shift) -> None:
    """Entries that are being sent, or were and are not settled, are pending in Redis too and not sent again."""
    await stage.order(2)
    await stage.dispatcher.take("AB")
    await stage.dispatcher.beat()
    await stage.dispatcher.take("AB")
    await stage.sent()
    await stage.dispatcher.beat()
    await stage.dispatcher.take("AB")
    await stage.sent()
    assert len(await stage.received()) == 2
    assert stage.dispatcher.in_flight == 2


async def test_settle_again_adds_only_late_copies(stage: Shift) -> None:
    """After an error the same outcomes are handed in again, and the recorder counts one attempt."""
    await stage.order(1)
    await stage.dispatcher.take("AB")
    await stage.sent()
    twice = list(stage.box.ended)
    await stage.dispatcher.settle("AB")
    stage.box.ended.extend(twice)
    await stage.dispatcher.settle("AB")
    assert [late for _, late in await stage.outcomes()] == ["", "late"]
    await stage.night.recorder.step()
    assert await stage.night.sql("SELECT number, late FROM delivery_log") == [(1, False)]
    assert await stage.pending() == 0


async def test_what_is_recorded_is_forgotten(stage: Shift) -> None:
    """An outcome is kept until take says that PostgreSQL has it."""
    await stage.order(2)
    await stage.turn()
    assert stage.dispatcher.unrecorded == 2
    await stage.dispatcher.take("AB")
    assert stage.dispatcher.unrecorded == 2
    await stage.night.recorder.step()
    await stage.dispatcher.take("AB")
    assert stage.dispatcher.unrecorded == 0


async def test_who_takes_no_more_learns_what_is_recorded(stage: Shift) -> None:
    """Leaving, a worker asks for it, and its answer is what is still missing."""
    await stage.order(1)
    await stage.turn()
    assert await stage.dispatcher.learn_recorded() == 1
    await stage.night.recorder.step()
    assert await stage.dispatcher.learn_recorded() == 0


async def test_another_generation(stage: Shift) -> None:
    """Unsent entries are dropped, and every outcome that may not be recorded is handed in again under it."""
    await stage.order(4)
    await stage.turn()
    stage.lateness(STRICT)
    await stage.order(2)
    await stage.turn()
    assert len(stage.box.held) == 2
    await stage.night.close(2)

    assert not stage.dispatcher.follow(2)
    assert stage.box.held == {}
    await stage.dispatcher.settle("AB")
    assert stage.dispatcher.follow(2)
    assert {late for _, late in await stage.outcomes(2)} == {"handed"}
    assert [a for a, _ in await stage.outcomes(2)] == [a for a, _ in await stage.outcomes(1)]


async def test_not_handed_in_while_a_send_is_under_way(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Going over says True only when what was sent has ended and is settled; its attempt is the old generation's."""
    async with shift(database_url, redis_url, key_prefix, tmp_path, bank=Bank(slow_ms=30)) as stage:
        batch = await stage.order(1)
        await stage.dispatcher.take("AB")
        await stage.night.close(2)
        assert not stage.dispatcher.follow(2)
        await stage.sent()
        assert not stage.dispatcher.follow(2)
        await stage.dispatcher.settle("AB")
        assert stage.dispatcher.follow(2)
        ((attempt, late),) = await stage.outcomes(2)
        assert (attempt.attempt_id, late) == (f"AB/1/batch:{batch}/1-1", "")


async def test_a_reply_that_comes_after_going_over_is_not_sent(stage: Shift) -> None:
    """Whoever said that nothing is in hand sends nothing of a take that was on its way meanwhile."""
    await stage.order(3)
    taking = asyncio.create_task(stage.dispatcher.take("AB"))
    await asyncio.sleep(0)  # the request has left, the reply has not come
    assert stage.dispatcher.follow(2)
    assert await taking == IDLE_S
    await stage.sent()
    assert await stage.received() == []
    assert (stage.box.held, stage.dispatcher.in_flight) == ({}, 0)


async def test_a_settle_that_ends_after_going_over_is_done_again(stage: Shift) -> None:
    """Outcomes that were under way to the old generation, and those before them, all reach the new one."""
    await stage.order(2)
    await stage.turn()
    await stage.order(3)
    await stage.dispatcher.take("AB")
    await stage.sent()
    settling = asyncio.create_task(stage.dispatcher.settle("AB"))
    await asyncio.sleep(0)
    assert not stage.dispatcher.follow(2)
    await settling
    assert len(await stage.outcomes(1)) == 5
    await stage.night.close(2)
    await stage.dispatcher.settle("AB")
    assert stage.dispatcher.follow(2)
    known = {a.attempt_id for a, _ in await stage.outcomes(1)}
    assert {a.attempt_id for a, _ in await stage.outcomes(2)} == known


async def test_stale_takes_and_settles_wait(stage: Shift) -> None:
    """While Redis carries another generation nothing is sent and no outcome is given away."""
    await stage.order(2)
    await stage.dispatcher.take("AB")
    await stage.sent()
    await stage.night.close(2)
    assert await stage.dispatcher.take("AB") == IDLE_S
    assert await stage.dispatcher.settle("AB") == 4 * IDLE_S
    assert len(stage.box.ended) == 2


async def test_leaving_gives_back(stage: Shift) -> None:
    """What was not sent waits for others, without an attempt counted; nothing more is taken."""
    await stage.order(3)
    stage.lateness(STRICT)
    await stage.turn()
    assert await stage.dispatcher.leave() == 3
    assert await stage.pending() == 0
    stage.lateness(FORGIVING)
    await stage.turn()
    assert await stage.received() == []

    others = await stage.night.take(10, worker="other")
    assert [entry.attempts for entry in others] == [0, 0, 0]
    assert all(entry.place.lane.endswith(":returns") for entry in others)


async def test_what_misses_its_slot_while_leaving_is_given_back(stage: Shift) -> None:
    """A send that ends unsent while others are given back is not forgotten: it would be taken for sent."""

    class Stalled:
        """Sends nothing; the first misses its slot at once, the second when `gate` opens."""

        def __init__(self) -> None:
            self.gate = asyncio.Event()
            self.asked = 0

        async def send(self, request: Send) -> SlotMissed:
            """No request ever leaves."""
            self.asked += 1
            if self.asked == 2:
                await self.gate.wait()
            return SlotMissed(late_by=timedelta(seconds=1))

    await stage.order(2)
    sends = Stalled()
    dispatcher = Dispatcher(stage.night.transit, sends, stage.partners, worker="leaver", generation=1)
    await dispatcher.begin("leaver")
    await dispatcher.take("AB")
    await asyncio.wait(dispatcher.outboxes["AB"].sending.values(), return_when=asyncio.FIRST_COMPLETED)
    leaving = asyncio.create_task(dispatcher.leave())
    await asyncio.sleep(0)
    sends.gate.set()
    assert await leaving == 1
    assert dispatcher.in_flight == 0
    assert await dispatcher.leave() == 1
    assert await stage.pending() == 0


async def test_what_was_handed_out_unheard_is_given_back(stage: Shift) -> None:
    """A take whose reply was lost before leaving leaves nothing in the hand of one who is gone."""
    await stage.order(2)
    await stage.night.take(2)  # under this worker's name: the reply that never came
    assert await stage.dispatcher.beat()
    assert await stage.dispatcher.leave() == 2
    assert await stage.pending() == 0


async def test_a_lost_lease_is_begun_again_under_another_id(stage: Shift) -> None:
    """Once the lease is gone nothing is sent, not even what was held, until there is another one."""
    await stage.order(3)
    stage.lateness(STRICT)
    await stage.turn()
    await stage.lose_lease()
    assert not await stage.dispatcher.beat()
    stage.lateness(FORGIVING)
    await stage.turn()
    assert await stage.received() == []

    await stage.dispatcher.begin("worker-2")
    assert (stage.dispatcher.worker, stage.box.held) == ("worker-2", {})
    assert await leases.alive(stage.night.transit, [WORKER, "worker-2"]) == {"worker-2"}
    await stage.turn()
    assert await stage.received() == [], "those three are the old id's, whose reaper decides"
    await stage.order(1)
    await stage.turn()
    assert len(await stage.received()) == 1


async def test_an_outcome_outlives_its_lease(stage: Shift) -> None:
    """What was sent under the old id is settled under the new one."""
    await stage.order(1)
    await stage.dispatcher.take("AB")
    await stage.lose_lease()
    await stage.dispatcher.beat()
    await stage.dispatcher.begin("worker-2")
    await stage.sent()
    await stage.dispatcher.settle("AB")
    ((attempt, late),) = await stage.outcomes()
    assert (attempt.state, late, attempt.worker) == (State.SUCCEEDED, "", WORKER)


async def test_the_lease_is_given_up_at_the_end(stage: Shift) -> None:
    """Nobody has to wait fifteen seconds for a worker that left."""
    await stage.dispatcher.end()
    assert await leases.alive(stage.night.transit, [WORKER]) == frozenset()


async def test_at_once_bounds_the_process(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """Not more sends are under way than the process may have; the rest stays in the lane, and room wakes take."""
    async with shift(
        database_url, redis_url, key_prefix, tmp_path, bank=Bank(slow_ms=20), at_once=8
    ) as stage:
        await stage.order(20)
        await stage.dispatcher.take("AB")
        assert len(stage.box.sending) == 8
        assert await stage.dispatcher.take("AB") == IDLE_S
        assert stage.box.blocked
        assert await stage.pending() == 8
        await stage.sent()
        assert stage.box.room.is_set()
        for _ in range(8):
            await stage.turn()
        assert len(set(await stage.received())) == len(await stage.received()) == 20


async def test_full_by_max_in_flight(stage: Shift) -> None:
    """What another worker has in hand counts; room comes from settling."""
    keys = stage.night.keys()
    await stage.order(10)
    await stage.night.transit.scripts.configure(
        keys, generation=1, interval_us=1, guard_us=0, max_in_flight=4, floor_percent=20
    )
    await stage.night.take(3, worker="other")
    await stage.dispatcher.take("AB")
    assert len(stage.box.sending) == 1
    assert await stage.dispatcher.take("AB") == IDLE_S
    assert stage.box.blocked
    await stage.sent()
    stage.box.room.clear()
    await stage.dispatcher.settle("AB")
    assert stage.box.room.is_set()


async def test_misses_make_bursts_smaller(stage: Shift) -> None:
    """A process that comes too late begins fewer sends at once, and as many as before once it is in time."""
    await stage.order(700)
    stage.lateness(STRICT)
    sizes = []
    for _ in range(4):
        await stage.dispatcher.take("AB")
        sizes.append(len(stage.box.sending))
        await stage.sent()
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 4
    stage.lateness(FORGIVING)
    for _ in range(28):
        await stage.turn()
    await stage.dispatcher.take("AB")
    assert len(stage.box.sending) > sizes[0]


async def test_misses_make_the_lead_longer(stage: Shift) -> None:
    """After a miss the next slots begin later than before, counted from the asking."""
    await stage.order(100)

    async def lead() -> timedelta:
        before = await stage.night.transit.redis.time()
        await stage.dispatcher.take("AB")
        tat = (await gauge(stage.night.transit, stage.night.keys())).tat_us
        return timedelta(microseconds=tat - before[0] * 1_000_000 - before[1])

    stage.lateness(STRICT)
    assert await lead() >= timedelta(milliseconds=2)
    for _ in range(4):
        await stage.sent()
        await stage.dispatcher.take("AB")
    await stage.sent()
    assert await lead() >= timedelta(milliseconds=25)


class _Far:
    """Sends to a partner that takes too long to connect to."""

    async def send(self, request: Send) -> SlotMissed:
        """Always a moment late."""
        return SlotMissed(late_by=timedelta(milliseconds=30), connecting=True)


async def test_who_is_slow_to_connect_to_makes_nobody_begin_less(stage: Shift) -> None:
    """Slots missed while connecting give that partner more time; what the process begins at once stays as it was."""
    await stage.order(100)
    dispatcher = Dispatcher(stage.night.transit, _Far(), stage.partners, worker=WORKER, generation=1)
    await dispatcher.begin(WORKER)
    box = dispatcher.outboxes["AB"]
    sizes, leads = [], [box.lead]
    for _ in range(4):
        await dispatcher.take("AB")
        sizes.append(len(box.sending))
        leads.append(box.lead)
        await asyncio.gather(*box.sending.values())
    assert sizes == sorted(sizes)
    assert leads[-1] > 4 * leads[0]


async def test_paused_and_closed_send_nothing(stage: Shift) -> None:
    """A pause holds at once; a partner without work is left alone for a while."""
    await stage.order(2)
    await stage.night.transit.scripts.pause(stage.night.keys(), generation=1, paused=True)
    assert await stage.dispatcher.take("AB") >= IDLE_S
    assert stage.box.sending == {}
    await stage.night.transit.scripts.pause(stage.night.keys(), generation=1, paused=False)
    await stage.turn()
    assert await stage.dispatcher.take("AB") >= IDLE_S
    assert len(await stage.received()) == 2


async def test_a_store_that_is_away_makes_the_hand_doubtful(stage: Shift) -> None:
    """Where a group is gone nothing is sent, and what is held is looked up before it is used again."""
    batch = await stage.order(1)
    await stage.night.transit.redis.xgroup_destroy(stage.night.keys().lane(f"batch:{batch}"), "senders")
    assert await stage.dispatcher.take("AB") == IDLE_S
    assert stage.box.doubtful


@dataclass(frozen=True, slots=True)
class Descheduled:
    """The real engine in a process that loses the processor between the write and the stamp."""

    webhook: Webhook
    by_s: float

    async def send(self, request: Send) -> Answer | Failed | SlotMissed:
        """Send, and say that it left that much too late."""
        answer = await self.webhook.send(request)
        assert request.late is not None
        request.late(self.by_s)
        return answer


async def test_a_late_stamp_moves_the_next_slots_away(stage: Shift) -> None:
    """Sends that were stamped too late cost the partner that much time, once for all of a moment."""
    sends = Descheduled(stage.webhook, by_s=30.0)
    late = Dispatcher(stage.night.transit, sends, stage.partners, worker=WORKER, generation=1)
    await late.begin("late")
    await stage.order(3)

    await late.take("AB")
    await asyncio.gather(*late.outboxes["AB"].sending.values())
    await late.settled_pace()

    ahead_us = (await gauge(stage.night.transit, stage.night.keys())).tat_us - await now_us(
        stage.night.transit.redis
    )
    assert 25_000_000 < ahead_us < 31_000_000


async def test_what_cannot_be_read_stops_nobody(stage: Shift) -> None:
    """An entry of another version stays in hand, unsent and unsettled; its neighbours are delivered."""
    night = stage.night
    lane = "batch:900:returns"
    rows = [
        Feed(entry=None, delivery="job:later", envelope=b"\xc1 not ours"),
        Feed(entry=None, delivery="job:more", envelope=b""),
    ]
    read_at_us = await now_us(night.transit.redis)
    await night.transit.scripts.feed(
        night.keys(), generation=1, lane=lane, expect_last="", read_at_us=read_at_us, rows=rows
    )
    await stage.order(1)
    await stage.turn()
    await stage.dispatcher.beat()  # looks again at what is in hand
    await stage.turn()
    assert len(await stage.received()) == 1
    assert await stage.pending() == 2


async def test_a_closed_outbox_gives_back_and_goes(stage: Shift) -> None:
    """It takes no more; what it held is in the lane again for somebody else, and then it is gone."""
    await stage.order(3)
    stage.lateness(STRICT)
    await stage.turn()
    assert len(stage.box.held) == 3
    stage.dispatcher.close("AB")
    stage.lateness(FORGIVING)
    await stage.turn()
    assert len(stage.box.held) == 3, "a closed outbox begins nothing"
    assert await stage.dispatcher.drop_closed() == ["AB"]
    assert await stage.pending() == 0
    stage.dispatcher.open(stage.partners["AB"])
    await stage.turn()
    assert len(await stage.received()) == 3


async def test_a_closed_outbox_ends_what_it_began(stage: Shift) -> None:
    """Its sends are settled, and it stays until PostgreSQL has what came of them."""
    await stage.order(2)
    await stage.dispatcher.take("AB")
    stage.dispatcher.close("AB")
    assert await stage.dispatcher.drop_closed() == []
    await stage.sent()
    await stage.dispatcher.settle("AB")
    assert await stage.dispatcher.drop_closed() == []
    await stage.night.recorder.step(100)
    assert await stage.dispatcher.drop_closed() == ["AB"]
    assert len(await stage.received()) == 2


async def test_a_closed_outbox_is_opened_again(stage: Shift) -> None:
    """A partner that was taken out and put back is sent to by its new values, by the same outbox."""
    await stage.order(2)
    stage.dispatcher.close("AB")
    changed = replace(stage.partners["AB"], endpoint=stage.banks.endpoint("AB") + "/changed")
    stage.dispatcher.open(changed)
    assert await stage.dispatcher.drop_closed() == []
    await stage.turn()
    assert {attempt.status_code for attempt, _ in await stage.outcomes()} == {404}


async def test_closed_outboxes_go_and_are_named_together(stage: Shift) -> None:
    """While one cannot give back no other goes unnamed: whoever runs its steps would find it gone, and end."""
    held = replace(stage.partners["AB"], lateness=STRICT)
    partners = {"CD": replace(held, name="CD"), "AB": held}
    dispatcher = Dispatcher(stage.night.transit, stage.webhook, partners, worker=WORKER, generation=1)
    await dispatcher.begin(WORKER)
    await stage.order(1)
    await dispatcher.take("AB")
    await asyncio.gather(*dispatcher.outboxes["AB"].sending.values())
    for name in partners:
        dispatcher.close(name)
    await stage.night.close(2)
    with pytest.raises(StaleGeneration):
        await dispatcher.drop_closed()
    assert set(dispatcher.outboxes) == {"CD", "AB"}
    assert dispatcher.follow(2)
    assert await dispatcher.drop_closed() == ["CD", "AB"]

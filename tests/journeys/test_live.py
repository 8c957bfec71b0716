"""Live events from a signed request to the bank, by real processes, which are killed, and whose jobs.toml changes."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import cast

import aiohttp
import psycopg
import pytest
import redis as redis_sync

from madeira.bank_ledger import Bank
from madeira.embedded_server import free_port
from streams.keys import ROUTERS, Keys
from tests.journeys.house import House, ended_by_itself, house

KEY = "a-secret-of-the-shop"
LIVE = """
[sources.shop]
key_env = "SHOP_KEY"

[[routes]]
source = "shop"
event_type = "payment.*"
to = "{routing_key}"
"""
PAYLOAD = (
    '{"order":  %d, "amount": 0.10, "reference": 123456789012345678901234567890, "to": "Dvo\\u0159\u00e1k"}'
)
"""With spaces, a long number and an escape that nobody may touch."""


@dataclass(slots=True)
class Shop:
    """A sender of events, and what it was told of each."""

    night: House
    url: str
    session: aiohttp.ClientSession
    said: dict[str, int] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)

    async def post(self, number: int, *, to: str) -> int:
        """One event by its number; the status, 0 where nobody answered."""
        event_id, payload = f"e{number}", PAYLOAD % number
        self.payloads[f"shop:{event_id}"] = payload.encode()
        body = f'{{"event_id":"{event_id}","event_type":"payment.created","routing_key":"{to}","payload":{payload}}}'
        self.said[f"shop:{event_id}"] = status = await self._ask("POST", "/v1/events", body.encode())
        return status

    async def ready(self, at: str = "") -> bool:
        """Whether it says that it is."""
        return await self._ask("GET", "/readyz", b"", at) == 200

    async def where(self, number: int) -> dict[str, object]:
        """What `GET /v1/events/{event_id}` says."""
        path = f"/v1/events/e{number}"
        async with self.session.get(self.url + path, headers=_signed(path.encode())) as answer:
            assert answer.status == 200, await answer.text()
            return cast("dict[str, object]", await answer.json())

    async def _ask(self, method: str, path: str, body: bytes, at: str = "") -> int:
        headers = _signed(body) | {"Content-Type": "application/json"}
        try:
            async with self.session.request(
                method, (at or self.url) + path, data=body, headers=headers
            ) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def opened(self, at: str = "") -> None:
        """Until `serve`, or who answers at this address, is ready."""
        async with asyncio.timeout(60):
            while not await self.ready(at):  # noqa: ASYNC110 - a process of its own tells nobody
                await asyncio.sleep(0.05)

    def taken(self) -> set[str]:
        """Events that got their 202."""
        return {event for event, status in self.said.items() if status == 202}

    def arrived(self) -> Counter[str]:
        """How often a bank accepted each event; their bytes are the shop's."""
        for entry in self.night.accepted():
            assert entry.sha256 == sha256(self.payloads[entry.id]).hexdigest(), entry.id
        return Counter(entry.id for entry in self.night.accepted())

    async def delivered(self, events: set[str]) -> None:
        """Until the record says that all of these are."""

        def all_of_them() -> bool:
            statuses = self.night.statuses()
            return all(statuses.get(event, ("", False))[0] == "succeeded" for event in events)

        await self.night.until(all_of_them)


def _signed(message: bytes) -> dict[str, str]:
    now = str(int(time.time()))
    made = hmac.new(KEY.encode(), f"{now}\n".encode() + message, "sha256").hexdigest()
    return {"Madeira-Source": "shop", "Madeira-Timestamp": now, "Madeira-Signature": made}


@asynccontextmanager
async def shop(
    database_url: str, redis_url: str, key_prefix: str, folder: Path, **behaviours: Bank
) -> AsyncIterator[Shop]:
    """A house with a source and a route to the bank that the routing key names, and the source's sender."""
    async with (
        house(database_url, redis_url, key_prefix, folder, answer_within="1s", **behaviours) as night,
        aiohttp.ClientSession() as session,
    ):
        rewrite(night, lambda text: text + LIVE)
        at = f"127.0.0.1:{free_port()}"
        night.environ.update(SHOP_KEY=KEY, MADEIRA_LISTEN=at)
        yield Shop(night, f"http://{at}", session)


def rewrite(night: House, change: Callable[[str], str]) -> None:
    """Another jobs.toml in the place of this one."""
    path = night.folder / "jobs.toml"
    new = path.with_suffix(".new")
    new.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    new.replace(path)


def logged(night: House, process: str, event: str) -> list[dict[str, object]]:
    """Log lines of this event by processes of this command."""
    path = night.folder / f"{process}.log"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in found if line.get("event") == event]


def a_minute_later(night: House) -> None:
    """What half a minute without its router does to an entry in its hand, and ten seconds to one that none saw."""
    with psycopg.connect(night.record_url) as record:
        record.execute("UPDATE unrouted SET since = since - interval '1 minute'")
    assert night.settings.redis_url is not None
    with redis_sync.Redis.from_url(night.settings.redis_url) as client:
        for shard in Keys(night.settings.key_prefix).inbound:
            for entry in client.xpending_range(shard.stream, ROUTERS, "-", "+", 1000):
                client.xclaim(shard.stream, ROUTERS, entry["consumer"], 0, [entry["message_id"]], idle=60_000)
        for name in list(client.scan_iter(match=f"{night.settings.key_prefix}:worker:*")):
            client.delete(name)


def _figure(metrics: list[str], name: str, **labels: str) -> float:
    """The sum over all series of that name with these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    series = [line for line in metrics if line.startswith(name + "{") and all(w in line for w in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in series)


async def left(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that was asked to leave."""
    process.send_signal(signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 60)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["postgres", "redis"])
async def test_events_arrive_as_they_were_posted(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, durability: str
) -> None:
    """Byte by byte, each once, at the bank that it names; its sender can see where it is; both leave cleanly."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank(), B=Bank()) as sender:
        rewrite(
            sender.night,
            lambda text: text.replace("[sources.shop]", f'[sources.shop]\ndurability = "{durability}"'),
        )
        port = free_port()
        working = ("work", "--metrics", f"127.0.0.1:{port}")
        with sender.night.process("serve") as serve, sender.night.process(*working) as work:
            await sender.opened()
            await sender.opened(f"http://127.0.0.1:{port}")
            for number in range(20):
                assert await sender.post(number, to="AB"[number % 2]) == 202
            assert await sender.post(7, to="B") == 202, "the same once more is no mistake"
            assert await sender.post(7, to="A") == 409
            sender.said["shop:e7"] = 202
            await sender.delivered(sender.taken())
            assert sender.arrived() == Counter(sender.payloads.keys())
            banks = {entry.id: entry.bank for entry in sender.night.accepted()}
            assert banks == {f"shop:e{n}": "AB"[n % 2] for n in range(20)}
            found = await sender.where(7)
            assert found["status"] == "routed"
            [delivery] = cast("list[dict[str, object]]", found["deliveries"])
            assert (delivery["partner"], delivery["status"]) == ("B", "succeeded")
            async with sender.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                metrics = (await answer.text()).splitlines()
            assert _figure(metrics, "madeira_inbound_events_total", source="shop", verdict="accepted") == 20
            assert _figure(metrics, "madeira_attempts_settled_total", lane="live", outcome="succeeded") == 20
            assert (await left(serve), await left(work)) == (0, 0)
        assert sender.night.record("SELECT count(*) FROM unrouted") == [(0,)]


@pytest.mark.slow
async def test_all_in_one_go(database_url: str, redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    """`up` takes events, sends them and fires jobs; its scheduler follows jobs.toml, too; it leaves with 0."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as sender:
        night = sender.night
        night.order(5)
        with night.process("up") as everything:
            await sender.opened()
            assert await sender.post(1, to="A") == 202
            await sender.delivered({"shop:e1"})
            await night.until(lambda: len(night.accepted()) >= 6)
            rewrite(night, lambda text: text.replace('start = "00:00"', 'start = "00:01"'))
            await night.until(lambda: logged(night, "up", "schedule_changed"))
            assert await left(everything) == 0


@pytest.mark.slow
async def test_several_processes_share_the_address(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """One of them is killed: what it had not answered is sent again, another one takes its place, nothing is lost."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as sender:
        night = sender.night
        with night.process("serve", "--processes", "2") as serve, night.process("work"):
            await night.until(lambda: len(logged(night, "serve", "serving")) == 2)
            await sender.opened()
            os.kill(cast("int", logged(night, "serve", "serving")[0]["pid"]), signal.SIGKILL)
            for number in range(40):
                while await sender.post(number, to="A") != 202:
                    pass
            await night.until(lambda: len(logged(night, "serve", "serving")) == 3)
            await sender.delivered(sender.taken())
            assert await left(serve) == 0
        assert sender.arrived() == Counter(sender.payloads.keys())
        assert len(logged(night, "serve", "serving_ended")) == 2


@pytest.mark.slow
async def test_jobs_toml_changes_while_everything_runs(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    """A new partner and source take effect without a restart or a recovery; a file with mistakes changes nothing."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as sender:
        night = sender.night
        with night.process("serve"), night.process("work"):
            await sender.opened()
            assert await sender.post(1, to="A") == 202
            await sender.delivered({"shop:e1"})
            assert await sender.post(2, to="C") == 202
            await night.until(lambda: night.record("SELECT event FROM unrouted WHERE reason IS NOT NULL"))

            rewrite(night, lambda text: text.replace("qps = 200", "qps = 0") + "[partners.C]\n")
            for process in ("serve", "work"):
                await night.until(lambda process=process: logged(night, process, "configuration_refused"))
            [refused] = logged(night, "work", "configuration_refused")
            assert any("partners.A.qps" in str(mistake) for mistake in cast("list[str]", refused["mistakes"]))
            assert await sender.post(3, to="A") == 202
            await sender.delivered({"shop:e3"})

            without_key = (
                '[partners.C]\nendpoint = "https://c.example"\nqps = 1\nsigning_key_env = "NOT_SET"\n'
            )
            rewrite(
                night,
                lambda text: text.replace("qps = 0", "qps = 200").replace("[partners.C]\n", without_key),
            )
            await night.until(lambda: len(logged(night, "work", "configuration_refused")) == 2)
            assert "partners.C needs NOT_SET" in str(
                logged(night, "work", "configuration_refused")[1]["mistakes"]
            )

            section = (night.folder / "jobs.toml").read_text().split("[partners.A]")[1].split("\n[")[0]
            endpoint = night.banks.endpoint("A")
            rewrite(
                night,
                lambda text: text.replace(
                    without_key,
                    "[partners.C]"
                    + section.replace("qps = 200", "qps = 50").replace(endpoint, night.banks.endpoint("C")),
                ),
            )
            await night.until(lambda: logged(night, "work", "configuration_taken"))
            assert await sender.post(4, to="C") == 202
            await sender.delivered({"shop:e4"})
            assert {entry.id: entry.bank for entry in night.accepted()} == {
                "shop:e1": "A",
                "shop:e3": "A",
                "shop:e4": "C",
            }
        assert night.record("SELECT number FROM generation") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["intake-after-commit:8"])
async def test_a_killed_serve_loses_nothing(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, step: str
) -> None:
    """Whatever got its 202 arrives, and so does what was committed when nobody could say so any more."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank()) as sender:
        night = sender.night
        with night.process("serve", failpoint=step) as serve:
            await sender.opened()
            for number in range(20):
                await sender.post(number, to="A")
            await night.until(lambda: ended_by_itself(serve))
        taken = sender.taken()
        assert taken == {f"shop:e{number}" for number in range(7)}
        a_minute_later(night)
        with night.process("work"):
            committed = {f"shop:e{number}" for number in range(8)}
            await sender.delivered(committed)
            assert sender.arrived() == Counter(committed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    ["route-after-read", "route-after-commit", "route-after-feed", "route-after-ack", "send-after:5"],
)
async def test_a_killed_worker_loses_no_live_event(
    database_url: str, redis_url: str, key_prefix: str, tmp_path: Path, step: str
) -> None:
    """Another one goes on wherever it was; what a bank saw twice is flagged, and only what was sent by then."""
    async with shop(database_url, redis_url, key_prefix, tmp_path, A=Bank(), B=Bank()) as sender:
        night = sender.night
        with night.process("serve"):
            await sender.opened()
            for number in range(20):
                assert await sender.post(number, to="AB"[number % 2]) == 202
            with night.process("work", failpoint=step) as work:
                await night.until(lambda: ended_by_itself(work))
            a_minute_later(night)
            for number in range(20, 30):
                assert await sender.post(number, to="AB"[number % 2]) == 202
            with night.process("work"):
                await sender.delivered(sender.taken())
        arrived = sender.arrived()
        assert len(sender.taken()) == 30
        assert arrived.keys() == sender.taken()
        flagged = {event for event, (_, twice) in night.statuses().items() if twice}
        assert {event for event, times in arrived.items() if times > 1} <= flagged
        if step.startswith("route"):
            assert flagged == set()

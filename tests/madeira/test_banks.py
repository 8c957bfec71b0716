"""The receiving banks: what they book, what they count, and that they remember it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from madeira.bank_ledger import Bank, Summary
from madeira.banks import Banks
from sinks.answer import Answer, Failed
from sinks.webhook import Webhook
from tests.partner import attempt, banks, envelope, partner


async def _pay(received: Banks, *ids: str, body: bytes | None = None, number: int = 1) -> list[int]:
    """Statuses of one payment after the other, 0 where no answer came."""
    statuses = []
    async with Webhook.open(connections=4) as webhook:
        for event_id in ids:
            event = envelope(event_id, **({} if body is None else {"payload": body}))
            to = partner(received.endpoint("AB"))
            result = await webhook.send(attempt(to, event=event, number=number))
            statuses.append(result.status if isinstance(result, Answer) else 0)
    return statuses


async def test_books_each_id_once(tmp_path: Path) -> None:
    """An id that comes again is accepted again, booked once, and listed as a duplicate; another body is noticed."""
    async with banks(tmp_path) as received:
        assert await _pay(received, "1", "2", "1") == [200, 200, 200]
        assert await _pay(received, "2", body=b'{"amount": 1.00}') == [200]
        totals = received.summary().banks["AB"]
    assert (totals.requests, totals.accepted, totals.accepted_minor) == (4, 2, 2 * 245_200)
    assert totals.duplicate_requests == 2
    assert totals.duplicates == ["payment-orders:1", "payment-orders:2"]
    assert totals.other_body == ["payment-orders:2"]


@pytest.mark.parametrize(
    ("amount", "minor"),
    [
        (b"0.10", 10),
        (b'"9007199254740993.01"', 900719925474099301),
        (b"1e2", 10_000),
        (b"0.001", None),
        (b"null", None),
    ],
)
async def test_amounts_are_exact(tmp_path: Path, amount: bytes, minor: int | None) -> None:
    """Amounts are counted in hundredths without a float on the way; what does not fit is counted apart."""
    async with banks(tmp_path) as received:
        await _pay(received, "1", body=b'{"amount": ' + amount + b"}")
        (entry,) = received.entries()
        totals = received.summary().banks["AB"]
    assert entry.amount_minor == minor
    assert totals.without_amount == (minor is None)


async def test_unavailable_then_well(tmp_path: Path) -> None:
    """The first requests get 503, whichever ids they carry; nothing of them is booked."""
    async with banks(tmp_path, AB=Bank(unavailable_requests=2)) as received:
        assert await _pay(received, "1", "2", "1", "2") == [503, 503, 200, 200]
        assert received.summary().banks["AB"].duplicates == []


async def test_soft_failure_and_refusals(tmp_path: Path) -> None:
    """TRY_LATER passes at the second try; REFUSED and a closed account never do."""
    async with banks(tmp_path, AB=Bank(soft_fail_every=1)) as received:
        assert await _pay(received, "1", "1") == [200, 200]
        assert [entry.accepted for entry in received.entries()] == [False, True]
    for number, bank in enumerate([Bank(refuse_every=1), Bank(refuse_accounts=("83",))]):
        (folder := tmp_path / str(number)).mkdir()
        async with banks(folder, AB=bank) as received:
            assert await _pay(received, "1", "1") == ([200, 200] if bank.refuse_every else [400, 400])
            assert received.summary().banks["AB"].accepted == 0


async def test_most_per_second_counts_arrivals_of_any_second(tmp_path: Path) -> None:
    """Requests that arrive within one second are counted together, for each bank apart."""
    async with banks(tmp_path) as received:
        await _pay(received, *"123456")
        entries = received.entries()
        assert entries[-1].arrived_us - entries[0].arrived_us < 1_000_000
        assert received.summary().banks["AB"].most_per_second == 6


async def test_remembers_over_a_restart(tmp_path: Path) -> None:
    """What was accepted before a restart is a duplicate after it, and a line cut by a kill is dropped."""
    async with banks(tmp_path) as received:
        await _pay(received, "1")
    with (tmp_path / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"bank": "AB", "id": "half')
    async with banks(tmp_path) as received:
        assert await _pay(received, "1", "2") == [200, 200]
        totals = received.summary().banks["AB"]
        assert len(received.entries()) == 3
    assert (totals.requests, totals.accepted, totals.duplicates) == (3, 2, ["payment-orders:1"])


async def test_slow_bank_answers_in_the_end(tmp_path: Path) -> None:
    """A slow bank books at once and answers later; its connection carries the next request."""
    async with banks(tmp_path, AB=Bank(slow_ms=20)) as received:
        assert await _pay(received, "1", "2") == [200, 200]
        assert received.summary().banks["AB"].accepted == 2


async def test_reset_once_books_what_it_does_not_answer(tmp_path: Path) -> None:
    """The first payment is booked without an answer, every later one is answered."""
    async with banks(tmp_path, AB=Bank(reset_once=True)) as received:
        assert await _pay(received, "1", "1", "2") == [0, 200, 200]
        assert received.summary().banks["AB"].accepted == 2


async def test_process_of_its_own(tmp_path: Path) -> None:
    """Started by command it says its port, answers `/_ledger`, and after SIGKILL the next one knows what it knew."""
    script = tmp_path / "script.json"
    script.write_bytes(b'{"*": {"slow_ms": 1}}')
    for accepted in (1, 2):
        port_file = tmp_path / f"port{accepted}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "madeira.banks", "--port-file", str(port_file)),
            *("--ledger", str(tmp_path / "ledger.jsonl"), "--script", str(script)),
        )
        try:
            async with asyncio.timeout(20):
                while not port_file.exists():
                    assert process.returncode is None
                    await asyncio.sleep(0.01)
            port = int(port_file.read_text())
            async with Webhook.open(connections=1) as webhook:
                to = partner(f"http://127.0.0.1:{port}/banks/AB/payments")
                result = await webhook.send(attempt(to, event=envelope(str(accepted))))
            assert not isinstance(result, Failed)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /_ledger HTTP/1.1\r\nHost: banks\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            summary = msgspec.json.decode(await reader.readexactly(length), type=Summary)
            writer.close()
            assert summary.banks["AB"].accepted == accepted
        finally:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()

"""`madeira dead` and `madeira cancel` as an operator types them, on real servers."""

from __future__ import annotations

import asyncio
import csv
import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from madeira.cli import main
from pipelines.feed import Feeder
from pipelines.record import Recorder
from sinks.pool import open_pool
from streams.delivery import Kind
from streams.transit import Transit
from tests.pipelines.dead import dead, fed
from tests.pipelines.night import JOB, Night, partner

JOBS = """
[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
headers = { "X-Client" = "madeira" }
signing_key_env = ["AB_KEY"]

[partners.CD]
endpoint = "https://cd.example/payments"
qps = 50
"""


class Desk:
    """`madeira` with two partners, and a night to act on."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, key_prefix: str) -> None:
        self.folder = folder
        self.config = folder / "jobs.toml"
        self.config.write_text(JOBS)
        self.urls = (database_url, redis_url, key_prefix)
        self.environ = {
            "MADEIRA_CONFIG": str(self.config),
            "MADEIRA_DATABASE_URL": database_url,
            "MADEIRA_REDIS_URL": redis_url,
            "MADEIRA_KEY_PREFIX": key_prefix,
            "AB_KEY": "a-secret-of-thirty-two-characters",
        }

    def __call__(self, *arguments: str, typed: str = "") -> Result:
        """One command, and what is typed when it asks."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MADEIRA_CONFIG", str(self.config))
            return CliRunner().invoke(main, list(arguments), env=self.environ, input=typed)

    def act(self, what: Callable[[Night], Awaitable[None]]) -> None:
        """Let something happen in the night."""

        async def run() -> None:
            pool, transit = await open_pool(self.urls[0], name="test"), Transit.open(*self.urls[1:])
            partners = {name: partner(name) for name in ("AB", "CD")}
            found = Night(
                pool, transit, partners, Recorder(pool, transit, partners), Feeder(pool, transit, partners)
            )
            try:
                if not self.sql("SELECT 1 FROM generation WHERE number = 1"):
                    await found.open(1)
                await what(found)
            finally:
                await pool.close()
                await transit.close()

        asyncio.run(run())

    def sql(self, query: str) -> list[tuple[object, ...]]:
        """Rows of a query."""
        with psycopg.connect(self.urls[0], autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def desk(tmp_path: Path, database_url: str, redis_url: str, key_prefix: str) -> Iterator[Desk]:
    """Three dead at AB, of which one may have arrived, and two at CD."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    found = Desk(tmp_path, database_url, redis_url, key_prefix)

    async def die(tonight: Night) -> None:
        await dead(tonight, 2)
        await dead(tonight, 1, outcome=Kind.UNKNOWN)
        await dead(tonight, 2, name="CD")

    found.act(die)
    found.sql("UPDATE delivery SET cause = 'unknown_confirm_first' WHERE batch_id = 2")
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_list_is_grouped_counted_and_says_how_many_more(desk: Desk) -> None:
    """Sums per cause and currency first, then as many as asked for; 1 since there are some."""
    result = desk("dead", "list", "--limit", "2")
    assert result.exit_code == 1, result.output
    assert "unknown_confirm_first" in result.output
    assert "6.00 CZK" in result.output  # 1 + 2 + 1 + 2 of those refused
    assert "3 more: --limit 5" in result.output
    found = json.loads(desk("dead", "list", "--json", "--by", "partner").stdout)
    assert found["total"] == 5
    assert [(group["name"], group["count"]) for group in found["groups"]] == [("AB", 3), ("CD", 2)]
    assert [letter["event_id"] for letter in found["letters"]] == ["1:1", "1:2", "2:1", "3:1", "3:2"]


@pytest.mark.parametrize(
    ("filters", "events"),
    [
        (["--partner", "CD"], ["3:1", "3:2"]),
        (["--cause", "unknown_confirm_first"], ["2:1"]),
        (["--job", JOB, "--date", "2026-03-02"], ["1:1", "1:2", "2:1", "3:1", "3:2"]),
        (["--job", "another"], []),
        (["--date", "2026-03-03"], []),
        (
            ["--older-than", "1d", "--currency", "CZK", "--min-amount", "2", "--max-amount", "2.00"],
            ["1:2", "3:2"],
        ),
        (["--older-than", "90000d"], []),
        (["--currency", "EUR"], []),
        (["--lane", "batch", "--event", f"{JOB}:1:2"], ["1:2"]),
        (["--lane", "live"], []),
    ],
)
def test_every_filter_filters(filters: list[str], events: list[str], desk: Desk) -> None:
    """Each alone and together; nothing found is no fault."""
    result = desk("dead", "list", "--json", *filters)
    assert result.exit_code == int(bool(events)), result.output
    assert [letter["event_id"] for letter in json.loads(result.stdout)["letters"]] == events


def test_amounts_need_their_currency(desk: Desk) -> None:
    """Also one with decimals that the currency does not have is refused."""
    for wrong in (
        ["--min-amount", "1"],
        ["--min-amount", "1.005", "--currency", "CZK"],
        ["--min-amount", "one"],
    ):
        assert desk("dead", "list", *wrong).exit_code == 2


def test_show_has_everything(desk: Desk) -> None:
    """Bytes, headers without what is secret, attempts, what operators did; in JSON binary bodies as base64."""
    desk("dead", "replay", "--event", f"{JOB}:1:1", "--yes", "--why", "mended")
    result = desk("dead", "show", f"{JOB}:1:1")
    assert result.exit_code == 0, result.output
    for text in (
        '{"n":1}',
        f"Idempotency-Key: {JOB}:1:1",
        "POST /payments HTTP/1.1",
        "mended",
        "dead replay",
        "as told",
    ):
        assert text in result.output
    assert "X-Client: madeira" not in result.output  # a header may hold a token
    [found] = json.loads(desk("dead", "show", f"{JOB}:1:1", "--json").stdout)
    assert (found["status"], len(found["attempt"]), found["schema_version"]) == ("pending", 1, 1)
    desk.sql(r"UPDATE event SET body = '\xff00'")
    [found] = json.loads(desk("dead", "show", f"{JOB}:1:1", "--json").stdout)
    assert b64decode(found["body_base64"]) == b"\xff\x00"
    assert desk("dead", "show", "no:such").exit_code == 1
    assert desk("dead", "show", "nonsense").exit_code == 2


def test_replay_asks_first_and_a_program_must_say_yes(desk: Desk) -> None:
    """Counts and sums, then the question; no changes nothing."""
    result = desk("dead", "replay", "--partner", "AB", typed="n\n")
    assert result.exit_code == 1
    assert "3 would go again, 4.00 CZK" in result.output
    assert desk("dead", "replay", "--json").exit_code == 2
    planned = json.loads(desk("dead", "replay", "--json", "--dry-run").stdout)
    assert (planned["count"], planned["dry_run"]) == (5, True)
    assert desk.sql("SELECT count(*) FROM audit") == [(0,)]
    done = json.loads(desk("dead", "replay", "--json", "--yes", "--partner", "AB").stdout)
    assert (done["count"], done["revision"]) == (3, 1)
    assert desk("dead", "replay", "--partner", "AB", "--yes").stdout.startswith("there is none")
    [(action, target)] = desk.sql("SELECT action, target FROM audit")
    assert (action, target) == ("dead replay", "partner AB")


def test_cancel_says_what_became_of_it(desk: Desk) -> None:
    """What waits is cancelled; a reason must be given, and with --yes a filter."""
    desk.act(_wait)
    assert desk("cancel", "--partner", "AB").exit_code == 2
    assert desk("cancel", "--yes", "--why", "x").exit_code == 2
    assert desk("cancel", "--dry-run").exit_code == 0
    result = desk("cancel", "--partner", "AB", "--why", "wrong file", "--yes")
    assert (result.exit_code, "4 are cancelled" in result.output) == (0, True), result.output
    found = json.loads(desk("dead", "cancel", "--why", "old", "--yes", "--json", "--partner", "AB").stdout)
    assert (found["count"], [each["left_out"] for each in found["sums"]].count("")) == (2, 1)
    assert desk.sql("SELECT count(*) FROM delivery WHERE status = 'cancelled'") == [(6,)]


async def _wait(tonight: Night) -> None:
    await tonight.release(4)
    await fed(tonight)


def test_resolve_settles_what_may_have_arrived(desk: Desk) -> None:
    """Delivered is a success that the report tells of; a second time, or of what was refused, it says no."""
    result = desk("dead", "resolve", f"{JOB}:2:1", "--as", "delivered", "--note", "statement of 3 March")
    assert result.exit_code == 0, result.output
    assert desk.sql("SELECT status::text, cause FROM delivery WHERE batch_id = 2") == [("succeeded", None)]
    assert desk("dead", "resolve", f"{JOB}:2:1", "--as", "delivered", "--note", "again").exit_code == 1
    assert desk("dead", "resolve", f"{JOB}:1:1", "--as", "delivered", "--note", "no").exit_code == 1
    [(action, why, detail)] = desk.sql("SELECT action, why, detail->'partners' FROM audit")
    assert (action, why, detail) == ("dead resolve", "statement of 3 March", ["AB"])


def test_export_writes_all_of_them(desk: Desk) -> None:
    """CSV guarded against formulas, JSON lines with the bytes; whole or not at all, and nothing overwritten."""
    desk.sql("UPDATE delivery SET last_error = '=1+1' WHERE partner = 'CD'")
    table, lines = desk.folder / "dead.csv", desk.folder / "dead.jsonl"
    assert desk("dead", "export", str(table)).exit_code == 0
    with table.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == [f"{JOB}:{n}" for n in ("1:1", "1:2", "2:1", "3:1", "3:2")]
    assert (rows[1]["amount"], rows[4]["reason"]) == ("2.00", "'=1+1")
    desk.sql(r"""UPDATE event SET body = '\x0a22ff', event_type = E'a "quoted"\nline \\ end'""")
    assert desk("dead", "export", str(lines), "--partner", "CD").stdout.startswith("2 dead letters")
    found = [json.loads(line) for line in lines.read_bytes().splitlines()]
    assert [b64decode(one["body_base64"]) for one in found] == [b'\n"\xff'] * 2
    assert found[1]["event_type"] == 'a "quoted"\nline \\ end'
    assert found[1]["amount"] == "2.00"
    before = table.read_bytes()
    assert desk("dead", "export", str(table)).exit_code == 2
    assert table.read_bytes() == before
    assert desk("dead", "export", "dead.xlsx").exit_code == 2
    assert sorted(path.name for path in desk.folder.iterdir()) == ["dead.csv", "dead.jsonl", "jobs.toml"]

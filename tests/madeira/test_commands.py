"""What operators type, on real servers: words, exit codes, and no secret in any of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from madeira.cli import main
from tests.pipelines.accounting import QUERY, TABLE

KEY = "a-key-that-nobody-may-see"
PASSWORD = "a-password-that-nobody-may-see"
JOBS = """
[[jobs]]
id = "payment-orders"
start = "01:15"
timezone = "Europe/Prague"
source = { dsn_env = "ACCOUNTING_DSN", query_file = "q.sql" }
event_id = ["order_id", "business_date"]
partner = "bank_to"
amount = "amount"
currency = "CZK"

[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
signing_key_env = "AB_KEY"

[partners.CD]
endpoint = "https://cd.example/payments"
qps = 20
"""
FIVE_MISTAKES = (
    ('start = "01:15"', 'start = "25:15"', "start"),
    ('timezone = "Europe/Prague"', 'timezone = "Europe/Prag"', "timezone"),
    ('query_file = "q.sql"', 'query_file = "gone.sql"', "gone.sql"),
    ("qps = 50", "qps = 0", "partners.AB.qps"),
    ("qps = 20", 'qps = 20\nendpiont = "x"', "endpiont"),
)
DAY = "2026-03-02"


@dataclass(frozen=True, slots=True)
class House:
    """`madeira` with a configuration of the test's own, on real servers, with an accounting source."""

    folder: Path
    database_url: str
    environ: dict[str, str]

    @property
    def config(self) -> Path:
        """The jobs file."""
        return self.folder / "jobs.toml"

    def __call__(self, *arguments: str, **environ: str) -> Result:
        """One command; what it says never holds a secret."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MADEIRA_CONFIG", str(self.config))  # the command sets it too, for its children
            result = CliRunner().invoke(main, list(arguments), env={**self.environ, **environ})
        assert KEY not in result.output
        assert PASSWORD not in result.output
        return result

    def act(self, statement: str) -> None:
        """Something that happens to the record or the source."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """What the record says."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return list(connection.execute(query.encode()).fetchall())


@pytest.fixture
def house(tmp_path: Path, database_url: str, redis_url: str, key_prefix: str) -> Iterator[House]:
    """Two orders are in the source, nothing was ever run."""
    (tmp_path / "jobs.toml").write_text(JOBS)
    (tmp_path / "q.sql").write_text(QUERY)
    found = House(
        tmp_path,
        database_url,
        {
            "MADEIRA_CONFIG": str(tmp_path / "jobs.toml"),
            "MADEIRA_DATABASE_URL": database_url,
            "MADEIRA_REDIS_URL": redis_url,
            "MADEIRA_KEY_PREFIX": key_prefix,
            "ACCOUNTING_DSN": database_url,
            "AB_KEY": KEY,
        },
    )
    found.act(TABLE)
    found.act("INSERT INTO payment_orders VALUES (1, 'AB', '000123', 10.00), (2, 'CD', '000124', 0.55)")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)


def test_check_is_fine(house: House) -> None:
    """The file, the environment and both servers; `ok` is the last word."""
    result = house("check")
    assert (result.exit_code, result.output.split()[-1]) == (0, "ok"), result.output
    assert json.loads(house("check", "--json").output)["ok"] is True


def test_five_mistakes_are_told_at_once(house: House) -> None:
    """Each with its place; nothing else is done; whatever the command was."""
    text = JOBS
    for right, wrong, _ in FIVE_MISTAKES:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    house.config.write_text(text)
    for command in (("check",), ("status",), ("batch", "run", "payment-orders", "--date", DAY)):
        result = house(*command)
        lines = result.output.splitlines()
        assert (result.exit_code, len(lines)) == (2, 5), result.output
        assert all(line.startswith("jobs.toml:") for line in lines)
        for _, _, place in FIVE_MISTAKES:
            assert any(place in line for line in lines), place


def test_an_unknown_job_is_named_with_the_nearest(house: House) -> None:
    """Exit 2, and what may have been meant."""
    result = house("batch", "run", "payment-order", "--date", DAY)
    assert result.exit_code == 2
    assert "no job is called payment-order" in result.output
    assert "payment-orders" in result.output


def test_an_unknown_partner(house: House) -> None:
    """The same for partners; nothing was recorded."""
    result = house("pause", "AA")
    assert (result.exit_code, "no partner is called AA" in result.output) == (2, True), result.output
    assert house.rows("SELECT count(*) FROM audit") == [(0,)]


def test_a_date_that_is_none(house: House) -> None:
    """Said by the command line itself."""
    assert house("batch", "run", "payment-orders", "--date", "2026-02-30").exit_code == 2


def test_a_second_run_does_nothing_and_says_so(house: House) -> None:
    """The first releases with counts and sums; the second changes nothing, however the source looks by then."""
    first = house("batch", "run", "payment-orders", "--date", DAY)
    assert (first.exit_code, "2 rows released" in first.output) == (0, True), first.output
    assert "10.55 CZK" in first.output
    house.act("INSERT INTO payment_orders VALUES (3, 'AB', '000125', 1.00)")
    second = house("batch", "run", "payment-orders", "--date", DAY)
    assert (second.exit_code, "nothing was done" in second.output) == (0, True), second.output
    facts = json.loads(house("batch", "run", "payment-orders", "--date", DAY, "--json").output)
    assert (facts["did_nothing"], facts["loaded"], facts["state"]) == (True, 2, "released")
    assert house.rows("SELECT count(*) FROM event") == [(2,)]


def test_a_refused_batch_says_why(house: House) -> None:
    """Exit 1, the offenders with their reasons, nothing sent; mended, it can be run again."""
    house.act("INSERT INTO payment_orders VALUES (3, 'XX', '000125', 1.00), (4, NULL, '000126', 1.00)")
    result = house("batch", "run", "payment-orders", "--date", DAY)
    assert (result.exit_code, "nothing was sent" in result.output) == (1, True), result.output
    assert "XX" in result.output
    assert house.rows("SELECT count(*) FROM delivery") == [(0,)]
    house.act("DELETE FROM payment_orders WHERE order_id > 2")
    assert house("batch", "run", "payment-orders", "--date", DAY).exit_code == 0


def test_a_plan_writes_nothing(house: House) -> None:
    """It says what a run would load, or why it would be refused."""
    result = house("batch", "plan", "payment-orders", "--date", DAY)
    assert (result.exit_code, "nothing is written" in result.output) == (0, True), result.output
    assert house.rows("SELECT (SELECT count(*) FROM batch) + (SELECT count(*) FROM business_day_run)") == [
        (0,)
    ]
    house.act("INSERT INTO payment_orders VALUES (3, 'XX', '000125', 1.00)")
    refused = house("batch", "plan", "payment-orders", "--date", DAY, "--json")
    assert (refused.exit_code, json.loads(refused.output)["would_release"]) == (1, False)


def test_a_source_that_does_not_let_us_in(house: House) -> None:
    """The password of the DSN is in no word of it."""
    result = house(
        *("batch", "run", "payment-orders", "--date", DAY),
        ACCOUNTING_DSN=f"postgresql://nobody:{PASSWORD}@127.0.0.1:1/none",
    )
    assert result.exit_code != 0
    assert "Traceback" not in result.output


def test_status_by_what_it_finds(house: House) -> None:
    """0 while nothing needs attention, 1 with a problem, which says what to type."""
    fine = house("status")
    assert (fine.exit_code, "nothing needs attention" in fine.output) == (0, True), fine.output
    house("batch", "run", "payment-orders", "--date", DAY)
    waiting = house("status")
    assert (waiting.exit_code, "start `madeira work`" in waiting.output) == (1, True), waiting.output
    # No worker has been here, so Redis knows of no partner yet; the pause counts all the same.
    assert "a worker sets it in Redis" in house("pause", "AB", "--why", "they asked").output
    problems = json.loads(house("status", "--json").output)["problems"]
    assert any("no worker is running" in problem for problem in problems)
    assert any("AB is paused with 1 deliveries" in problem for problem in problems), problems
    house("resume", "AB")
    assert "is paused" not in house("status").output


def test_jobs(house: House) -> None:
    """The next runs, in the job's own time and in UTC."""
    runs = json.loads(house("jobs", "--count", "2", "--json").output)
    assert [run["job"] for run in runs] == ["payment-orders"] * 2
    assert all("T01:15:00" in run["local"] for run in runs)
    assert all(run["utc"].endswith("Z") or run["utc"].endswith("+00:00") for run in runs)
    assert "Europe/Prague" in house("jobs").output


def test_trace(house: House) -> None:
    """One event by its id, with or without its source; an id that nobody knows is exit 1."""
    house("batch", "run", "payment-orders", "--date", DAY)
    for name in (f"1:{DAY}", f"payment-orders:1:{DAY}"):
        result = house("trace", name)
        assert result.exit_code == 0, result.output
        for part in (f"payment-orders:1:{DAY} → AB: pending", "10.00 CZK", "row 1"):
            assert part in result.output
    (facts,) = json.loads(house("trace", f"2:{DAY}", "--json").output)
    assert (facts["partner"], facts["amount_minor"], facts["attempt"]) == ("CD", 55, [])
    unknown = house("trace", "3")
    assert (unknown.exit_code, "no event is called 3" in unknown.output) == (1, True), unknown.output


def test_a_dry_run_changes_nothing(house: House) -> None:
    """It says whom it would stop, and neither record nor audit knows of it."""
    result = house("pause", "--all", "--dry-run")
    assert (result.exit_code, "AB, CD would be paused" in result.output) == (0, True), result.output
    assert house.rows("SELECT (SELECT count(*) FROM audit) + (SELECT count(*) FROM partner_control)") == [
        (0,)
    ]


def test_pause_wants_one_or_all(house: House) -> None:
    """Neither and both are usage errors."""
    assert house("pause").exit_code == 2
    assert house("pause", "AB", "--all").exit_code == 2
    assert house.rows("SELECT count(*) FROM partner_control") == [(0,)]


def test_all_are_paused_and_resumed(house: House) -> None:
    """A row of intent for each, with who and why."""
    assert house("pause", "--all", "--why", "night of the migration").exit_code == 0
    assert house("resume", "CD").exit_code == 0
    assert house.rows("SELECT partner, paused FROM partner_control ORDER BY partner") == [
        ("AB", True),
        ("CD", False),
    ]
    assert house.rows("SELECT DISTINCT why FROM audit WHERE action = 'pause'") == [
        ("night of the migration",)
    ]


@pytest.mark.parametrize("command", [("work",), ("work", "--processes=2"), ("up",)])
def test_work_without_its_signing_key_does_not_begin(house: House, command: tuple[str, ...]) -> None:
    """Nobody is sent unsigned payments: exit 2 at once, and variable and place are named, once."""
    result = house(*command, AB_KEY="")
    assert (result.exit_code, result.output.count("partners.AB needs AB_KEY")) == (2, 1), result.output
    assert house.rows("SELECT count(*) FROM worker") == [(0,)]


def test_an_old_schema_is_refused_with_the_command(house: House) -> None:
    """On a given server migrations are for its owner to run."""
    house.act("DELETE FROM alembic_version")
    result = house("status")
    assert (result.exit_code, "madeira migrate" in result.output) == (2, True), result.output


def test_migrate_says_the_schema(house: House) -> None:
    """Again and again, without harm."""
    assert house("migrate").output.startswith("the database is at schema ")
    assert house("migrate").exit_code == 0

"""A jobs.toml that is changed while somebody goes by it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from madeira.reload import Watched
from madeira.settings import Settings, load
from streams.errors import ConfigurationError

TEXT = """
[[jobs]]
id = "payment-orders"
start = "01:15"
timezone = "Europe/Prague"
source = { dsn_env = "ACCOUNTING_DSN", query_file = "q.sql" }
event_id = "order_id"
partner = "bank_to"

[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
"""


@dataclass(slots=True)
class Desk:
    """Where somebody edits; `watched` is the process that goes by the file."""

    folder: Path
    watched: Watched
    caplog: pytest.LogCaptureFixture

    @property
    def config(self) -> Path:
        """The file."""
        return self.folder / "jobs.toml"

    def write(self, text: str) -> None:
        """Save it."""
        self.config.write_text(text)

    def looks(self, count: int = 2) -> list[Settings]:
        """What so many looks in a row give."""
        return [settings for _ in range(count) if (settings := self.watched.look()) is not None]

    def logged(self) -> list[str]:
        """The event names so far."""
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def desk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Desk:
    """A right file that a process has begun with and looked at."""
    caplog.set_level(logging.INFO, logger="madeira.reload")
    (tmp_path / "q.sql").write_text("SELECT order_id, bank_to FROM payment_orders")
    (tmp_path / "jobs.toml").write_text(TEXT)
    environ = {"MADEIRA_CONFIG": str(tmp_path / "jobs.toml"), "ACCOUNTING_DSN": "x"}
    desk = Desk(tmp_path, Watched(environ, load(environ)), caplog)
    assert desk.looks(3) == []
    assert desk.logged() == []
    return desk


def test_a_changed_file_is_taken_once(desk: Desk) -> None:
    """With all that it says, and a line in the log; after that nothing is new."""
    desk.write(TEXT.replace("qps = 50", "qps = 60"))
    (settings,) = desk.looks(5)
    assert settings.partners["AB"].qps == 60
    assert desk.watched.settings is settings
    assert desk.logged() == ["configuration_taken"]


def test_a_file_with_mistakes_is_refused_once_and_the_old_one_stays(desk: Desk) -> None:
    """The log has the mistakes; each new wrong content counts, a look at the same does not."""
    before = desk.watched.settings
    desk.write(TEXT.replace("qps = 50", "qps = 0"))
    assert desk.looks(5) == []
    assert desk.watched.settings is before
    assert desk.watched.mistakes == ("jobs.toml:12: partners.AB.qps must be above 0, is 0",)
    (record,) = desk.caplog.records
    assert record.getMessage() == "configuration_refused"
    assert record.__dict__["fields"]["mistakes"] == list(desk.watched.mistakes)
    desk.write("a = = b")
    assert desk.looks(3) == []
    assert desk.watched.refusals == 2
    assert desk.logged() == ["configuration_refused"] * 2


def test_a_refused_file_that_is_mended_is_taken(desk: Desk) -> None:
    """Put back as it was there is nothing new in it, but the mistakes are gone; changed rightly it counts."""
    for text, taken in ((TEXT, 0), (TEXT.replace("qps = 50", "qps = 70"), 1)):
        desk.write("[partner]")
        assert desk.looks() == []
        assert desk.watched.mistakes
        desk.write(text)
        assert len(desk.looks(3)) == taken
        assert desk.watched.mistakes == ()
    assert desk.watched.settings.partners["AB"].qps == 70


def test_a_changed_query_is_taken(desk: Desk) -> None:
    """Though jobs.toml itself is the same."""
    (desk.folder / "q.sql").write_text("SELECT order_id, bank_to FROM other_orders")
    (settings,) = desk.looks(3)
    assert "other_orders" in settings.jobs[0].job.query


def test_a_query_file_that_comes_later_mends_a_refused_file(desk: Desk) -> None:
    """The file names it before it is there."""
    desk.write(TEXT.replace("q.sql", "later.sql"))
    assert desk.looks() == []
    assert desk.watched.refusals == 1
    (desk.folder / "later.sql").write_text("SELECT order_id, bank_to FROM later_orders")
    (settings,) = desk.looks(3)
    assert settings.jobs[0].job.query_file == "later.sql"


def test_a_file_that_is_gone_for_one_look_is_not_refused(desk: Desk) -> None:
    """Editors save by putting another file in its place; one that stays away is a mistake."""
    desk.config.unlink()
    assert desk.looks(1) == []
    desk.write(TEXT)
    assert desk.looks(3) == []
    assert desk.watched.refusals == 0
    desk.config.unlink()
    assert desk.looks(3) == []
    assert desk.watched.refusals == 1
    assert "is not there" in desk.watched.mistakes[0]


def test_a_file_that_is_still_being_written_is_not_taken(desk: Desk) -> None:
    """Its half may be right by itself and lack a partner."""
    more = TEXT + '\n[partners.CD]\nendpoint = "https://cd.example"\nqps = 5\n'
    desk.write(more)
    assert len(desk.looks()) == 1
    for end in range(0, len(more), 7):
        desk.write(more[:end])
        assert desk.looks(1) == []
    desk.write(more)
    assert desk.looks(3) == []
    assert desk.watched.refusals == 0
    assert sorted(desk.watched.settings.partners) == ["AB", "CD"]


def test_a_comment_changes_nothing_that_anybody_must_hear_of(desk: Desk) -> None:
    """It is read and right, and the settings are the same."""
    desk.write(TEXT + "# the thirteen banks come later\n")
    assert desk.looks(3) == []
    assert desk.logged() == ["configuration_taken"]


def test_a_touched_file_is_not_read_anew(desk: Desk) -> None:
    """The content decides, not the time of the file."""
    desk.write(TEXT)
    assert desk.looks(3) == []
    assert desk.logged() == []


def test_a_change_before_the_first_look_is_found(tmp_path: Path) -> None:
    """A process may take seconds between reading its settings and its first look."""
    (tmp_path / "q.sql").write_text("SELECT order_id, bank_to FROM payment_orders")
    (tmp_path / "jobs.toml").write_text(TEXT)
    environ = {"MADEIRA_CONFIG": str(tmp_path / "jobs.toml"), "ACCOUNTING_DSN": "x"}
    begun_with = load(environ)
    (tmp_path / "jobs.toml").write_text(TEXT.replace("qps = 50", "qps = 60"))
    watched = Watched(environ, begun_with)
    found = [settings for _ in range(3) if (settings := watched.look()) is not None]
    assert [settings.partners["AB"].qps for settings in found] == [60]


def test_what_the_process_requires_is_a_mistake_of_the_file(desk: Desk) -> None:
    """A worker cannot go by a partner whose key it does not have."""

    def require(settings: Settings) -> None:
        if settings.unready_partners:
            raise ConfigurationError(("partners.AB: its key is not set",))

    environ = {"MADEIRA_CONFIG": str(desk.config), "ACCOUNTING_DSN": "x"}
    desk.watched = Watched(environ, desk.watched.settings, require=require)
    desk.write(TEXT + 'signing_key_env = "AB_KEY"\n')
    assert desk.looks(3) == []
    assert desk.watched.mistakes == ("partners.AB: its key is not set",)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"\x00", b"jobs = 1", b"[[jobs]]\nsource = 1", b"[" * 9_999]
)
def test_whatever_stands_there_a_look_raises_nothing(desk: Desk, content: bytes) -> None:
    """It is refused like any mistake."""
    desk.config.write_bytes(content)
    assert desk.looks(3) == []
    assert desk.watched.refusals == 1


def test_a_name_of_a_query_file_that_no_system_knows_is_refused(desk: Desk) -> None:
    """A NUL or a name that is too long is a mistake, not a crash."""
    for name in ("a\\u0000b", "x" * 5_000):
        desk.write(TEXT.replace("q.sql", name))
        assert desk.looks(3) == []
    assert desk.watched.refusals == 2

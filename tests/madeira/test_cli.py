"""What stops a command is said in words, with the exit code that a script can rely on."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from madeira.cli import main
from madeira.embedded_server import free_port
from madeira.settings import LOG_LEVELS

JOBS = """
[partners.AB]
endpoint = "https://ab.example/payments"
qps = 50
"""


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What a command sets up for its process ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A jobs.toml without a mistake."""
    path = tmp_path / "jobs.toml"
    path.write_text(JOBS)
    return path


def called(config: Path, *arguments: str, **environ: str) -> Result:
    """`madeira` with these arguments and nothing else of Madeira's in the environment."""
    nothing = dict.fromkeys(("MADEIRA_DATABASE_URL", "MADEIRA_REDIS_URL", "MADEIRA_LOG", "MADEIRA_CONFIG"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MADEIRA_CONFIG", str(config))  # the command sets it too, for its children
        return CliRunner().invoke(main, ["--config", str(config), *arguments], env={**nothing, **environ})


@pytest.mark.parametrize("command", [("status",), ("migrate",), ("pause", "AB"), ("work",)])
def test_a_store_that_does_not_answer_is_exit_3(config: Path, command: tuple[str, ...]) -> None:
    """Nobody listens at the given URLs: one sentence, no trace."""
    url = f"127.0.0.1:{free_port()}"
    result = called(
        config, *command, MADEIRA_DATABASE_URL=f"postgresql://{url}/x", MADEIRA_REDIS_URL=f"redis://{url}/0"
    )
    assert (result.exit_code, len(result.output.splitlines())) == (3, 1), result.output
    assert "PostgreSQL does not answer" in result.output


def test_a_pause_is_recorded_while_redis_is_away(config: Path, database_url: str) -> None:
    """What operators want is in PostgreSQL first, with who and why; Redis follows."""
    redis_url = f"redis://127.0.0.1:{free_port()}/0"
    result = called(
        config,
        "pause",
        "AB",
        "--why",
        "they asked",
        MADEIRA_DATABASE_URL=database_url,
        MADEIRA_REDIS_URL=redis_url,
    )
    assert result.exit_code == 0, result.output
    assert "Redis follows" in result.output
    with psycopg.connect(database_url) as record:
        intents = record.execute("SELECT partner, paused, why FROM partner_control").fetchall()
        actions = record.execute("SELECT action, target, why FROM audit").fetchall()
    assert intents == [("AB", True, "they asked")]
    assert actions == [("pause", "AB", "they asked")]


def test_embedded_servers_that_cannot_start_are_exit_3(config: Path, tmp_path: Path) -> None:
    """A damaged state file is named, with what to do."""
    (tmp_path / "embedded.json").write_text("{")
    result = called(config, "status", MADEIRA_VAR=str(tmp_path))
    assert (result.exit_code, len(result.output.splitlines())) == (3, 1), result.output
    assert "embedded.json is damaged" in result.output


@pytest.mark.parametrize("level", [*LOG_LEVELS, *(level.upper() for level in LOG_LEVELS)])
def test_every_documented_log_level_is_taken(config: Path, level: str) -> None:
    """Small or capital letters."""
    result = called(config, "check", "--offline", MADEIRA_LOG=level)
    assert result.exit_code == 0, result.output


def test_another_log_level_is_a_mistake_of_the_environment(config: Path) -> None:
    """It is told like every other mistake."""
    result = called(config, "check", "--offline", MADEIRA_LOG="loud")
    assert result.exit_code == 2
    assert "MADEIRA_LOG must be one of" in result.output


def test_every_mistake_is_a_line_and_exit_2(config: Path) -> None:
    """Each with its place."""
    config.write_text(JOBS.replace("50", "0").replace("https", "ftp"))
    result = called(config, "check", "--offline")
    assert result.exit_code == 2
    assert [line.split(" ")[0] for line in result.output.splitlines()] == ["jobs.toml:3:", "jobs.toml:4:"]


def test_tags_that_no_partner_has(config: Path) -> None:
    """A worker for nobody was meant for somebody: exit 2, before any server is asked, and what tags there are."""
    config.write_text(JOBS + 'tags = { region = "sh", size = "s" }\n')
    for given, wanted in ((("region=bj",), "region=bj"), (("region=sh,size=l",), "region=sh, size=l")):
        result = called(config, "work", *(part for tags in given for part in ("--tags", tags)))
        assert result.exit_code == 2, result.output
        assert f"no partner in {config} has {wanted}; tags there are region=sh, size=s" in result.output
    assert called(config, "work", "--tags", "region").exit_code == 2


def test_keys_of_partners_with_other_tags_need_not_be_there(config: Path, redis_url: str) -> None:
    """Whoever does not send to a partner need not know its secrets; whoever does is refused without them."""
    config.write_text(
        JOBS
        + 'tags = { region = "sh" }\n'
        + JOBS.replace("AB", "CD")
        + 'signing_key_env = "NOT_SET"\ntags = { region = "bj" }\n'
    )
    nowhere = f"postgresql://127.0.0.1:{free_port()}/x"
    stores = {"MADEIRA_DATABASE_URL": nowhere, "MADEIRA_REDIS_URL": redis_url}
    assert called(config, "work", "--tags", "region=sh", **stores).exit_code == 3
    refused = called(config, "work", "--tags", "region=bj", **stores)
    assert (refused.exit_code, "partners.CD needs NOT_SET" in refused.output) == (2, True), refused.output


@pytest.mark.parametrize(
    "command", [("serve", "--listen"), ("serve", "--processes=2", "--listen"), ("work", "--metrics")]
)
def test_a_port_that_is_taken_is_said_in_one_line(
    config: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Exit 2 before any server is started, with the address and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        result = called(config, *command, at, MADEIRA_VAR=str(tmp_path / "var"))
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    assert f"cannot listen at {at}" in result.output
    assert not (tmp_path / "var").exists()
    assert called(config, *command, "8700").exit_code == 2

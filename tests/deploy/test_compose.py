"""compose.yaml: valid, the same settings as the embedded servers, and no variable that nobody reads."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from madeira.embedded_postgres import SETTINGS
from madeira.settings import ENVIRONMENT

ROOT = Path(__file__).parents[2]
OURS = ("migrate", "serve", "worker", "scheduler")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(YAML(typ="safe").load((ROOT / "compose.yaml").read_text()))


def _options(command: list[str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in command if "=" in each)


def test_it_keeps_to_the_compose_specification(compose: dict[str, Any]) -> None:
    """The schema is the one that the compose specification publishes, as check-jsonschema ships it."""
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(compose)


@pytest.mark.parametrize("service", OURS)
def test_the_environment_is_what_the_settings_read(compose: dict[str, Any], service: str) -> None:
    """Each MADEIRA_ variable is one that settings.py knows, and both stores are given."""
    given = {name for name in compose["services"][service]["environment"] if name.startswith("MADEIRA_")}
    assert given - set(ENVIRONMENT) == set()
    assert given >= {"MADEIRA_DATABASE_URL", "MADEIRA_REDIS_URL", "MADEIRA_CONFIG"}


@pytest.mark.parametrize("service", OURS)
def test_the_urls_name_services_of_this_file(compose: dict[str, Any], service: str) -> None:
    """The host in each URL is a service, and the service waits until that one is healthy."""
    environment = compose["services"][service]["environment"]
    hosts = {
        re.sub(r".*@([a-z]+):.*", r"\1", environment[f"MADEIRA_{name}_URL"]) for name in ("DATABASE", "REDIS")
    }
    assert hosts == {"postgres", "redis"}
    waits_for = set(compose["services"][service]["depends_on"])
    assert waits_for == ({"postgres"} if service == "migrate" else {"postgres", "redis", "migrate"})
    for name, wait in compose["services"][service]["depends_on"].items():
        wanted = "service_completed_successfully" if name == "migrate" else "service_healthy"
        assert wait["condition"] == wanted
        assert name == "migrate" or "healthcheck" in compose["services"][name]


def test_counts_are_kept_where_all_of_ours_can_write(compose: dict[str, Any]) -> None:
    """The containers' own files are read-only: the folder of the metrics is one volume, which the image makes."""
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    for service in OURS:
        folder = compose["services"][service]["environment"]["MADEIRA_METRICS_DIR"]
        assert f"metrics:{folder}" in compose["services"][service]["volumes"]
        assert re.search(rf"chown madeira .*{folder}\b", image)
    assert "metrics" in compose["volumes"]


def test_redis_keeps_what_it_is_given(compose: dict[str, Any]) -> None:
    """AOF each second, no eviction, data on a volume: as the embedded one."""
    redis = compose["services"]["redis"]
    command = " ".join(redis["command"])
    for setting in ("--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction"):
        assert setting in command
    assert [volume.split(":")[1] for volume in redis["volumes"]] == ["/data"]


def test_postgres_runs_with_the_embedded_settings(compose: dict[str, Any]) -> None:
    """Whoever changes one changes the other; only where it listens differs."""
    elsewhere = {"listen_addresses", "unix_socket_directories"}
    wanted = {name: value for name, value in SETTINGS.items() if name not in elsewhere}
    assert _options(compose["services"]["postgres"]["command"]) == wanted


def test_no_secret_is_written_in_the_file(compose: dict[str, Any]) -> None:
    """Passwords and DSNs come from the environment, and a missing password stops compose."""
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|DSN|KEY|SECRET", name):
                assert value.startswith("${"), name
            if "://" in value:
                assert re.search(r":\$\{[A-Z_]+:\?[^}]*\}@", value), name


def test_the_image_does_not_run_as_root_and_installs_by_hash() -> None:
    """The last USER is a number above 0, and pip takes nothing whose hash is not in the lock."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    assert int([line.split()[1] for line in lines if line.startswith("USER")][-1]) > 0
    assert any("--require-hashes -r requirements.lock" in line for line in lines)


def test_the_lock_names_no_index_and_hashes_everything() -> None:
    """It installs on any machine with plain pip."""
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--index|--find-links|@ file", lock)
    entries = re.split(r"\n(?=[a-z0-9])", lock.strip())
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[^ ]+ ", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]

"""`/openapi.json` is true: schemathesis asks everything that it allows, and what it does not, and finds nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from requests.auth import AuthBase
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from madeira import api
from madeira.format import KEYS
from madeira.problem import Kind
from streams.money import EXPONENTS
from tests.madeira.desk import QUICK, Desk, desk, signed

DOCUMENT = schemathesis.openapi.from_path(api.OPENAPI)
OPERATIONS = {operation.ok().label: operation.ok() for operation in DOCUMENT.get_all_operations()}
PLACEHOLDERS = {"Madeira-Source": "quick", "Madeira-Timestamp": "1", "Madeira-Signature": "x"}

# An id that came before with another body is a conflict, which is no fault of the data.
DOCUMENT.config.checks.positive_data_acceptance.expected_statuses = ["2xx", "404", "409"]

BEYOND_A_SCHEMA = {"$.amount", "$.source"}
"""No schema can say that an amount has no more decimals than its currency, or who signed."""

ALLOWED, NOT_ALLOWED = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
QUESTIONS = [
    *((label, ALLOWED) for label in OPERATIONS),
    # The others have nothing that could be wrong, and lines are answered each for itself.
    *((label, NOT_ALLOWED) for label in ("POST /v1/events", "GET /v1/events/{event_id}")),
]


@schemathesis.serializer("application/x-ndjson")
def lines(_: object, value: object) -> bytes:
    """Text as it is."""
    return str(value).encode("utf-8", "surrogatepass")


class Sign(AuthBase):
    """Signs a request as it will be sent."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or (b"" if request.method == "POST" else str(request.path_url))
        message = body.encode() if isinstance(body, str) else bytes(body)
        request.headers.update(signed(message, source="quick"))
        return request


@contextmanager
def served(database_url: str, redis_url: str, key_prefix: str) -> Iterator[Desk]:
    """The API in a thread of its own, for a client that blocks."""
    started, ended = threading.Event(), asyncio.Event()
    found: list[tuple[Desk, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        source = replace(QUICK, rate=100_000)
        async with desk(database_url, redis_url, key_prefix, sources=[source]) as api_desk:
            found.append((api_desk, asyncio.get_running_loop()))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    api_desk, loop = found[0]
    try:
        yield api_desk
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # schemathesis does; hypothesis seeds it
@pytest.mark.parametrize(("label", "mode"), QUESTIONS)
def test_the_document_is_true(
    database_url: str, redis_url: str, key_prefix: str, label: str, mode: GenerationMode
) -> None:
    """Statuses, types, headers and bodies of answers are as promised; what is allowed is taken, the rest refused."""
    operation = OPERATIONS[label]
    load_all_checks()
    with served(database_url, redis_url, key_prefix) as found, requests.Session() as session:

        @settings(
            max_examples=60,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode, headers=dict(PLACEHOLDERS)))
        def ask(case: Case) -> None:
            response = case.call(base_url=f"http://127.0.0.1:{found.port}", session=session, auth=Sign())
            checks = CHECKS.get_all()
            if (
                response.status_code == 400
                and {m["path"] for m in response.json()["errors"]} <= BEYOND_A_SCHEMA
            ):
                checks = [check for check in checks if check.__name__ != "positive_data_acceptance"]
            case.validate_response(response, checks=checks)

        ask()


def test_the_document_knows_every_key_currency_and_problem() -> None:
    """What the code knows and what the document lists is the same."""
    keys = DOCUMENT.raw_schema["components"]["schemas"]["Event"]["properties"]
    assert set(keys) == set(KEYS)
    assert set(keys["currency"]["enum"]) == set(EXPONENTS)
    types = DOCUMENT.raw_schema["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert types == [kind.type for kind in Kind]


def test_the_page_has_every_problem() -> None:
    """docs/api.md says of each type which status it has."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = [f"| `{kind.type}` | {kind.status} |" for kind in Kind]
    assert [row for row in rows if row not in page] == []
    assert page.count("| `urn:madeira:problem:") == len(rows)

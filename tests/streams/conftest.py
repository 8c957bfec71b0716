"""A partner of the test's own on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streams.transit import Transit
from tests.streams.line import Line


@pytest.fixture
async def transit(redis_url: str, key_prefix: str) -> AsyncIterator[Transit]:
    """Redis below this test's prefix."""
    opened = Transit.open(redis_url, key_prefix)
    yield opened
    await opened.close()


@pytest.fixture
async def line(transit: Transit) -> Line:
    """An open partner without work."""
    made = Line(transit, transit.keys.partner("AB"))
    await made.open()
    return made

"""Everything here that awaits runs on both loops: uvloop, which workers use, and asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops by the name that shows in the test's id."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}

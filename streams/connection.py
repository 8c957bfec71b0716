"""How a Redis that is away, full or replaced is told to the rest of the house."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from streams.errors import StoreFull, StoreUnavailable, TransitLost

# A disk that is full, a script that runs too long, replicas that are away: it passes, and nothing was carried out.
_PASSING = ("MISCONF", "BUSY ", "NOREPLICAS")


@contextmanager
def reached() -> Iterator[None]:
    """Turns what redis-py raises into our tree; anything else passes as it is.

    After `StoreUnavailable` the command may have run, or may still run: adopt, don't repeat.
    Raises `StoreUnavailable` (no connection, no answer, loading, a replica, disk full; `StoreFull`: memory) and
    `TransitLost` (no group).
    """
    try:
        yield
    except (NoConnection, NoAnswer, ReadOnlyError, TimeoutError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error}") from error
    except OutOfMemoryError as error:
        raise StoreFull(f"Redis is at its memory limit: {error}") from error
    except ResponseError as error:
        # Not at the start: a pipeline puts the command before it.
        if "NOGROUP" in str(error) or "no such key" in str(error):
            raise TransitLost(str(error)) from error
        if any(word in str(error) for word in _PASSING):
            raise StoreUnavailable(f"Redis refuses for now: {error}") from error
        raise

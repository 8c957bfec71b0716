"""Addresses of this machine to listen at: whether one can be had, and words for when it cannot."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from streams.errors import ConfigurationError


@contextmanager
def listening_at(host: str, port: int, said_by: str) -> Iterator[None]:
    """An `OSError` of whoever listens there, as `ConfigurationError`; `said_by` is where the address was given."""
    try:
        yield
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigurationError(
            (
                f"{said_by}: cannot listen at {shown(host, port)} ({why}): "
                + (
                    "end who listens there, or name another port" if taken else "name an address of this host"
                ),
            )
        ) from None


def require_free(host: str, port: int, said_by: str) -> None:
    """Raise `ConfigurationError` where somebody listens already.

    Processes that share a port would not notice: to the kernel, one of another installation is one of them.
    """
    with listening_at(host, port, said_by):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)


def shown(host: str, port: int) -> str:
    """As it is written in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

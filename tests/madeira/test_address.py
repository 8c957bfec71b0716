"""Addresses to listen at: whose they are is known before anything is started."""

from __future__ import annotations

import socket

import pytest

from madeira.address import require_free, shown
from streams.errors import ConfigurationError


def test_a_free_address_is_fine_again_and_again() -> None:
    """Looking takes nothing."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for _ in range(2):
        require_free("127.0.0.1", port, "--listen")


def test_an_address_that_somebody_listens_at_is_refused() -> None:
    """Also where he would share it: to the kernel, a process of another installation is one of ours."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"--listen: cannot listen at 127.0.0.1:{port} .*another port"
        ):
            require_free("127.0.0.1", port, "--listen")


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_somebody_else_is_refused(host: str) -> None:
    """A host that is not this one, or none at all."""
    with pytest.raises(ConfigurationError, match="name an address of this host"):
        require_free(host, 8700, "--listen")


def test_how_an_address_is_shown() -> None:
    """As in a URL, so that it can be given back as an option."""
    assert (shown("127.0.0.1", 80), shown("::1", 80)) == ("127.0.0.1:80", "[::1]:80")

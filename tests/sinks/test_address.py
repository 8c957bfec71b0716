"""Which addresses a partner may have."""

from __future__ import annotations

import socket

import pytest

from sinks.address import AddressRefused, guarded_socket, refusal

PUBLIC = ["8.8.8.8", "193.85.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PRIVATE = [
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.9.9.9", "100.64.0.1", "::1", "fd12::1", "fec0::1",
    "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "::10.0.0.1", "198.18.0.1",
]  # fmt: skip
NEVER = [
    "169.254.169.254", "169.254.1.1", "100.100.100.200", "168.63.129.16", "224.0.0.1", "240.0.0.1",
    "0.0.0.0",  # noqa: S104 - to be refused, not bound to
    "255.255.255.255", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "fd00:ec2::254", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "192.0.0.192", "192.0.0.8", "0.1.2.3",
    "64:ff9b:1:a9fe:a9:fe00:808:808", "64:ff9b:1::808:808",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_fine(address: str) -> None:
    """A public address is fine, however it is written."""
    assert refusal(address, allow_private=False) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_the_partners_word(address: str) -> None:
    """Private, loopback and shared addresses are refused unless the partner says `allow_private`."""
    assert refusal(address, allow_private=False) is not None
    assert refusal(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_fine(address: str) -> None:
    """Metadata services, link-local, multicast, unspecified and reserved addresses are refused in any case."""
    assert refusal(address, allow_private=False) is not None
    assert refusal(address, allow_private=True) is not None


@pytest.mark.parametrize("address", ["", "localhost", "0x7f.1", "127.1", "2130706433", "1.2.3.4.5"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """Other spellings of an address are refused rather than understood differently here and in the kernel."""
    assert refusal(address, allow_private=True) is not None


def test_no_socket_to_a_refused_address() -> None:
    """The guard stands where the socket is made, so nothing can connect round it."""
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80))
    with pytest.raises(AddressRefused, match="loopback"):
        guarded_socket(allow_private=False)(info)
    with guarded_socket(allow_private=True)(info) as made:
        assert made.family == socket.AF_INET

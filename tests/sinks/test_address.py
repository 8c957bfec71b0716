"""Which addresses a partner may have."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from sinks.address import AddressRefused, guarded_socket, refusal, target_refusal
from sinks.partner import Partner

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


PARTNER = Partner(
    name="AB",
    endpoint="https://ab.example/in",
    qps=5,
    allowed_hosts=("alt.example:8443", "third.example", "[2001:db8::1]"),
)
PRIVATE_PARTNER = Partner(
    name="AB",
    endpoint="http://10.0.0.1:8080/in",
    qps=5,
    allowed_hosts=("10.0.0.2:81", "ten.example"),
    allow_private=True,
)


@pytest.mark.parametrize(
    "uri",
    [
        "https://ab.example/other?x=1",
        "https://AB.Example:443/",
        "HTTPS://ab.example",
        "https://alt.example:8443/x",
        "https://third.example/x",
        "https://third.example:443/x",
        "https://[2001:db8::1]/x",
        "https://ab.example/@evil.example/",
        "https://ab.example?@evil.example",
    ],
)
def test_a_target_within_the_partners_hosts(uri: str) -> None:
    """The endpoint's own host with any path, and the allowed ones at the port that stands there."""
    assert target_refusal(uri, PARTNER) is None


@pytest.mark.parametrize(
    "uri",
    [
        "http://ab.example/in",
        "https://ab.example:8443/in",
        "https://ab.example./in",
        "https://sub.ab.example/in",
        "https://ab.example.evil.example/in",
        "https://alt.example/x",
        "https://alt.example:443/x",
        "https://third.example:8443/x",
        "http://third.example/x",
        "http://third.example:443/x",
        "https://ab.example@evil.example/in",
        "https://ab.example:443@evil.example/in",
        "https://evil.example\\@ab.example/in",
        "https://evil.example\\.ab.example/in",
        "https://evil.example#@ab.example/in",
        "https://evil.example/https://ab.example/in",
        "https://ab%2eexample/in",
        "https://ab.example%00.evil.example/in",
        "https:///ab.example/in",
        "https:ab.example/in",
        "//ab.example/in",
        "/in",
        "https://ab.example:/in\r\nX: 1",
        "https://ab.example/in x",
        "https://[::ffff:1.2.3.4]/",
        "https://ab.example:99999/",
        "https://аb.example/in",
        "ftp://ab.example/in",
        "",
    ],
)
def test_a_target_elsewhere(uri: str) -> None:
    """Any other host, port or scheme, and every spelling that two readers could take for two hosts, is refused."""
    assert target_refusal(uri, PARTNER) is not None


def test_a_private_partner_may_use_http() -> None:
    """Where a private partner's own endpoint is http its allowed hosts may be, too; nobody else's."""
    assert target_refusal("http://10.0.0.1:8080/x", PRIVATE_PARTNER) is None
    assert target_refusal("http://10.0.0.2:81/x", PRIVATE_PARTNER) is None
    assert target_refusal("http://ten.example/x", PRIVATE_PARTNER) is None
    assert target_refusal("https://ten.example/x", PRIVATE_PARTNER) is None
    assert target_refusal("http://10.0.0.1/x", PRIVATE_PARTNER) is not None
    public = replace(PRIVATE_PARTNER, allow_private=False)
    assert target_refusal("http://ten.example/x", public) == "target_uri must be https"

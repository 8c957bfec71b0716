"""Which addresses a partner may have: as written in a URL, and of the very socket that is about to be connected.

A check of the name, or of one answer of the resolver, would be worth nothing: the name can resolve anew
between check and connect, and a literal address never meets the resolver. So the guard makes the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from yarl import URL

from sinks.partner import Partner

AddressInfo = tuple[
    int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]
]
"""One row of `getaddrinfo`, as aiohttp hands it to a socket factory."""

_METADATA: Final = frozenset(
    {
        IPv4Address("169.254.169.254"),
        IPv4Address("169.254.170.2"),
        IPv4Address("100.100.100.200"),
        IPv4Address("168.63.129.16"),  # looks public, is the host of a cloud
        IPv4Address("192.0.0.192"),  # and so is this one
        IPv6Address("fd00:ec2::254"),
    }
)
_SHARED: Final = IPv4Network("100.64.0.0/10")  # RFC 6598, carrier-grade NAT
_SPECIAL: Final = (
    IPv4Network("192.0.0.0/24"),
    IPv4Network("0.0.0.0/8"),
)  # RFC 6890; Python knows parts of them
_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")  # RFC 8215
_COMPATIBLE: Final = IPv6Network("::/96")


class AddressRefused(OSError):
    """The guard made no socket to this address. Travels through the HTTP client, never out of `sinks`."""


def check_endpoint(endpoint: str) -> URL:
    """The URL of a partner, exactly as written. Raises `ValueError` saying what is wrong with it."""
    url = URL(endpoint, encoded=True)
    if url.scheme not in {"http", "https"} or not url.raw_host:
        raise ValueError("must be an http:// or https:// URL with a host")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError("must not hold a user or password: use a header")
    if not all("!" <= c <= "~" for c in f"{url.raw_host}{url.raw_path_qs}"):
        raise ValueError("must be percent-encoded: only printable ASCII without spaces")
    return url


def target_refusal(uri: str, partner: Partner) -> str | None:
    """Why an event for this partner may not go to `uri`, None when it may.

    It may where scheme, host and port are the endpoint's own, or where the host is one of `allowed_hosts` (a name
    without a port means the scheme's own), then by https only; by http, too, where a private partner's endpoint
    is http. The path is the event's affair.
    """
    try:
        url = check_endpoint(uri)
    except ValueError as error:
        return f"target_uri {error}"
    own = _origin(partner.endpoint)
    scheme, host, port = _parts(url)
    if (scheme, host, port) == own:
        return None
    allowed = {name.lower() for name in partner.allowed_hosts}
    if f"{host}:{port}" not in allowed and not (url.is_default_port() and host in allowed):
        return "target_uri leads to a host that this partner does not have: add it to allowed_hosts if it is meant"
    if scheme != "https" and not (partner.allow_private and own[0] == "http"):
        return "target_uri must be https"
    return None


@lru_cache(maxsize=1024)
def _origin(endpoint: str) -> tuple[str, str, int]:
    return _parts(check_endpoint(endpoint))


def _parts(url: URL) -> tuple[str, str, int]:
    host = (url.raw_host or "").lower()
    return url.scheme, f"[{host}]" if ":" in host else host, url.port or 0


def refusal(address: str, *, allow_private: bool) -> str | None:
    """Why nobody may connect to `address` (a literal, a zone after `%` allowed), None when it is fine.

    With `allow_private` private and loopback addresses are fine; metadata services, link-local, multicast,
    unspecified and reserved addresses never are.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "not an IP address"
    return _refusal(parsed, allow_private=allow_private)


def _refusal(address: IPv4Address | IPv6Address, *, allow_private: bool) -> str | None:
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return _refusal(inner, allow_private=allow_private)
        if address in _LOCAL_NAT64:
            return "reserved"  # where the IPv4 address stands in it is the network's own affair
    if address in _METADATA:
        return "metadata service"
    if address.is_unspecified:
        return "unspecified"
    if address.is_multicast:
        return "multicast"
    if address.is_link_local:
        return "link-local"
    if address.is_loopback:
        return None if allow_private else "loopback"
    if isinstance(address, IPv4Address) and any(address in network for network in _SPECIAL):
        return "reserved"
    if isinstance(address, IPv4Address) and address in _SHARED:
        return None if allow_private else "shared (carrier-grade NAT)"
    if address.is_reserved:
        return "reserved"
    if address.is_private or (isinstance(address, IPv6Address) and address.is_site_local):
        return None if allow_private else "private"
    return None if address.is_global or allow_private else "not global"


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 one really leads to: mapped, compatible, 6to4, Teredo, NAT64."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    low = int(address) & 0xFFFFFFFF
    if address in _NAT64 or (address in _COMPATIBLE and low > 0xFFFF):
        return IPv4Address(low)
    return None


def guarded_socket(*, allow_private: bool) -> Callable[[AddressInfo], socket.socket]:
    """A socket factory that raises `AddressRefused` in place of making a socket to a refused address."""

    def make(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, target = info
        reason = refusal(str(target[0]), allow_private=allow_private)
        if reason is not None:
            raise AddressRefused(f"{reason} address")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    return make

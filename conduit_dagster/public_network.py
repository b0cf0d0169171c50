"""Connections to public addresses only, for URLs that untrusted users may choose."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, ProxyHandler, Request

_NAT64 = IPv6Network("64:ff9b::/96")


class PrivateAddressError(OSError):
    """Raised for a host without a public address; nothing was sent."""


def is_public(address: str) -> bool:
    """Return whether a numeric address belongs to the public Internet; False for loopback, link-local and metadata."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        found = _inner(found)
    return found.is_global and not found.is_multicast


def _inner(address: IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that a gateway would connect to, if one is embedded."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


def connect_public(
    address: tuple[str, int], timeout: Any = None, source: tuple[str, int] | None = None, options: Any = None
) -> socket.socket:
    """Connect to a public address of a host, and to no other. Raises :class:`PrivateAddressError`, ``OSError``.

    The name is resolved once, and the address that is checked is the one connected to: a name that resolves
    differently the next time gets nothing through.
    """
    host, port = address
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    public = [where for *_, where in found if is_public(str(where[0]))]
    if not public:
        raise PrivateAddressError(f"{host} has no public address, and private ones are refused (allow-private)")
    error: OSError | None = None
    for where in public:
        try:
            return _connected((str(where[0]), port), timeout, source, options)
        except OSError as failed:
            error = failed
    assert error is not None, "there was an address"
    raise error


def _connected(where: tuple[str, int], timeout: Any, source: tuple[str, int] | None, options: Any) -> socket.socket:
    made = socket.create_connection(where, timeout, source) if timeout is not None else socket.create_connection(where)
    for option in options or ():
        made.setsockopt(*option)
    return made


class _PublicHTTP(HTTPConnection):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._create_connection = connect_public  # the base class sets it on each object


class _PublicHTTPS(HTTPSConnection):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._create_connection = connect_public


class PublicHTTPHandler(HTTPHandler):
    """urllib's ``http:`` through :func:`connect_public`."""

    def http_open(self, req: Request) -> Any:
        """Open the URL. Raises ``URLError``."""
        return self.do_open(_PublicHTTP, req)


class PublicHTTPSHandler(HTTPSHandler):
    """urllib's ``https:`` through :func:`connect_public`."""

    def https_open(self, req: Request) -> Any:
        """Open the URL. Raises ``URLError``."""
        return self.do_open(_PublicHTTPS, req)


def public_handlers() -> list[Any]:
    """Return urllib's handlers for public addresses, without proxies: a proxy would resolve names itself."""
    return [PublicHTTPHandler(), PublicHTTPSHandler(), ProxyHandler({})]

"""Connections to public addresses only."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from conduit_dagster import public_network
from conduit_dagster.public_network import PrivateAddressError, connect_public, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "0", "[::1]", "::ffff:127.0.0.1"])
def test_no_way_to_write_it_leads_to_this_machine(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises((PrivateAddressError, socket.gaierror)):
            connect_public((host, server.getsockname()[1]), 1.0)
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked is what is connected to: the second answer of a rebinding name is never requested."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, *args: Any, **more: Any) -> Any:
        if host != "rebinding.example":
            return real(host, *args, **more)  # a numeric address, as the checked one is
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, args[0]))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(public_network, "is_public", lambda address: address == "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = connect_public(("rebinding.example", server.getsockname()[1]), 5.0)
        assert made.getpeername()[0] == "127.0.0.1"
        made.close()
    assert len(asked) == 1

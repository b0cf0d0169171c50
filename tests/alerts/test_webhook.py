"""Sending to a real server on this machine: what arrives, what is retried, and that secrets stay secret."""

from __future__ import annotations

import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from conduit_dagster import public_network
from conduit_dagster.alerts import webhook as webhook_module
from conduit_dagster.alerts.webhook import Webhook
from conduit_dagster.recovery.errors import TransientError

HEADERS = {"Authorization": "Bearer s3cr3t", "X-Mine": "yes"}


def refusal(webhook: Webhook) -> TransientError:
    """Return the error of a failed request; none of its texts contains a secret."""
    with capture_logs() as logs, pytest.raises(TransientError) as caught:
        webhook.send({"text": "x"})
    error = caught.value
    said = "".join(traceback.format_exception(error)) + repr(logs) + str(error.fix)
    assert "s3cr3t" not in said
    assert "/hooks" not in said
    assert "localhost" in error.message
    return error


@pytest.fixture(autouse=True)
def no_secret_in_any_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert "s3cr3t" not in caplog.text


def test_what_is_sent_arrives(receiver) -> None:
    Webhook(receiver.url, HEADERS).send({"text": "ü", "n": [1]})
    assert receiver.bodies == [{"text": "ü", "n": [1]}]
    assert receiver.paths == ["/hooks/s3cr3t?token=s3cr3t"]
    sent = {name.lower(): value for name, value in receiver.headers[0].items()}
    assert (sent["authorization"], sent["x-mine"]) == ("Bearer s3cr3t", "yes")
    assert (sent["content-type"], sent["user-agent"]) == ("application/json", "conduit-dagster")


def test_a_server_in_trouble_is_asked_again(receiver) -> None:
    receiver.answer = lambda body: 503 if len(receiver.bodies) < 3 else 200
    Webhook(receiver.url, HEADERS).send({"text": "x"})
    assert len(receiver.bodies) == 3


def test_it_gives_up_in_the_end(receiver) -> None:
    receiver.answer = lambda body: 500
    error = refusal(Webhook(receiver.url, HEADERS))
    assert (error.code, len(receiver.bodies)) == ("alerts.unreachable", 3)
    assert error.message == "the webhook at localhost can't be reached: it answered 500"


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_a_refusal_is_not_repeated(receiver, status: int) -> None:
    receiver.answer = lambda body: status
    error = refusal(Webhook(receiver.url, HEADERS))
    assert (error.code, len(receiver.bodies)) == ("alerts.refused", 1)
    assert str(status) in error.message


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_does_not_carry_the_headers_elsewhere(receiver, status: int) -> None:
    receiver.answer = lambda body: status
    assert refusal(Webhook(receiver.url, HEADERS)).code == "alerts.refused"
    assert receiver.paths == ["/hooks/s3cr3t?token=s3cr3t"]


def test_nobody_listens(receiver) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))  # bound but not listening: no other process can take it
        url = f"http://localhost:{taken.getsockname()[1]}/hooks/s3cr3t"
        error = refusal(Webhook(url, HEADERS))
    assert (error.code, error.message.split(": ")[1]) == ("alerts.unreachable", "Connection refused")


def test_a_server_that_never_answers(receiver) -> None:
    with socket.socket() as silent:
        silent.bind(("localhost", 0))
        silent.listen()
        webhook = Webhook(f"http://localhost:{silent.getsockname()[1]}/hooks/s3cr3t", HEADERS, timeout=0.2)
        assert refusal(webhook).code == "alerts.unreachable"


def test_a_server_whose_answer_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of it comes in time: the tick would last until Dagster ends it, and tell of nothing that it sent."""
    monkeypatch.setattr(webhook_module, "_ATTEMPTS", 1)
    with socket.create_server(("localhost", 0)) as slow:

        def answer() -> None:
            connection, _ = slow.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                for _ in range(100):
                    connection.sendall(b"x")
                    time.sleep(0.05)

        threading.Thread(target=answer, daemon=True).start()
        webhook = Webhook(f"http://localhost:{slow.getsockname()[1]}/hooks/s3cr3t", HEADERS, timeout=0.2)
        error = refusal(webhook)
    assert error.code == "alerts.unreachable"
    assert error.message.endswith("it gave no whole answer within 0.4 s")


@pytest.mark.parametrize("url", ["http://localhost:1/hooks/s3cr3t /x", "http://me:s3cr3t@localhost:1/hooks"])
def test_a_url_that_the_library_quotes_in_its_error(receiver, url: str) -> None:
    """The settings refuse such addresses; this is about the message."""
    assert refusal(Webhook(url, {"A": "s3cr3t\r\nB: c"})).code == "alerts.unreachable"


def test_a_private_address_can_be_refused(receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a proxy, which would resolve the name by itself."""
    monkeypatch.setenv("http_proxy", f"http://localhost:{receiver.port}")
    error = refusal(Webhook(receiver.url, HEADERS, allow_private=False))
    assert (error.code, receiver.bodies) == ("alerts.refused", [])
    assert "no public address" in error.message


def test_a_public_address_is_reached(receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_network, "is_public", lambda address: True)
    Webhook(receiver.url, HEADERS, allow_private=False).send({"text": "x"})
    assert receiver.bodies == [{"text": "x"}]

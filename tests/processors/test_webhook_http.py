"""``webhook.http``, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from itertools import islice
from typing import Any

import pytest
from lab.http_server import QuietHandler, serving
from processors.conftest import make
from pydantic import ValidationError

from conduit_dagster import public_network
from conduit_dagster.cli.reference import processor_pages
from conduit_dagster.engine.plugin_loading import load_plugins
from conduit_dagster.processors.webhook_http import WebhookHttpSettings, backoff_waits
from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack


class Server(ThreadingHTTPServer):
    """It greets: ``/fail/N`` answers 503 to the first N requests, ``/gate`` waits until four have arrived."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.gate = threading.Barrier(4, timeout=60)
        self.pause = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(QuietHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        """It greets."""
        body = self.body
        self.server.seen.append((self.command, self.path, body, {k.lower(): v for k, v in self.headers.items()}))
        if self.path.startswith("/gate"):
            self.server.gate.wait()
        fails = int(self.path.rpartition("/")[2]) if self.path.startswith("/fail/") else 0
        status = 503 if len(self.server.seen) <= fails else 404 if self.path == "/missing" else 200
        if self.path.startswith("/moved/"):  # /moved/STATUS/PLACE, and /moved/STATUS permanently
            code, _, place = self.path.removeprefix("/moved/").partition("/")
            self.answer(int(code), Location=f"/{place}" if place else self.path)
        elif self.path == "/elsewhere":
            self.answer(302, Location=f"http://127.0.0.2:{self.server.server_port}/")
        elif self.path == "/drip":
            self.drip()
        elif self.path == "/continue":
            self.go_on()
        elif self.path == "/cut":
            self.answer(200, b"hello", **{"Transfer-Encoding": "chunked"})  # no chunk, and then nothing
            self.close_connection = True
        else:
            self.answer(status, b"hello, " + (body or self.path.encode()))

    def drip(self) -> None:
        """Send a byte every now and then, ten seconds long."""
        self.send_response(200)
        self.send_header("Content-Length", "200")
        self.end_headers()
        with suppress(ConnectionError):
            for _ in range(200):
                self.wfile.write(b" ")
                self.server.pause.wait(0.05)

    def go_on(self) -> None:
        """Announce a response for ten seconds, and give none."""
        with suppress(ConnectionError):
            for _ in range(200):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.server.pause.wait(0.05)
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


def sent(settings: dict[str, str], *records: Record) -> list[Any]:
    """The results for records."""
    return list(make("webhook.http", settings).process_block(list(records)))


def test_the_body_and_the_status_come_back(server: Server) -> None:
    settings = {
        "request.url": server.url,
        "request.method": "POST",
        "request.body": '{{ printf "%s" .Payload.After }}',
        "headers.content-type": "text/plain",
        "headers.Authorization": "Bearer key",
        "response.status": '.Metadata["http_status"]',
    }
    shared: dict[str, str] = {"m": "1"}
    assert sent(settings, Record("1", shared, b"world")) == [
        Record("1", {"m": "1", "http_status": "200"}, b"hello, world")
    ]
    [(method, _, body, headers)] = server.seen
    assert (method, body, headers["content-type"], headers["authorization"]) == (
        "POST", b"world", "text/plain", "Bearer key",
    )  # fmt: skip
    assert shared == {"m": "1"}


def test_headers_are_sent_as_utf_8(server: Server) -> None:
    sent({"request.url": server.url, "headers.X-City": "Köln, 5 €"}, Record("1", {}))
    assert server.seen[0][3]["x-city"].encode("latin-1").decode() == "Köln, 5 €"


def test_the_url_may_be_a_template(server: Server) -> None:
    settings = {
        "request.url": server.url + "/{{ .Payload.After.name }}?q={{ .Payload.After.q }}&a=1",
        "response.body": ".Payload.After.answer",
    }
    record = Record("1", {}, {"name": "a b", "q": "x y/é"})
    assert sent(settings, record)[0].after["answer"] == "hello, /a%20b?a=1&q=x+y%2F%C3%A9"
    assert server.seen[0][0] == "GET" and server.seen[0][3]["content-type"] == "application/json"


@pytest.mark.parametrize(("path", "answer"), [("/missing", b"hello, /missing"), ("/moved/302/there", b"hello, /there")])
def test_other_statuses_are_answers(server: Server, path: str, answer: bytes) -> None:
    assert sent({"request.url": server.url + path}, Record("1", {}))[0].after == answer


@pytest.mark.parametrize(
    ("method", "status", "then", "body"),
    [
        ("POST", 301, "GET", b""),
        ("PUT", 302, "GET", b""),
        ("POST", 303, "GET", b""),
        ("HEAD", 302, "HEAD", b""),
        ("POST", 307, "POST", b"b"),
        ("PUT", 308, "PUT", b"b"),
    ],
)
def test_a_redirect_is_followed_as_go_does(server: Server, method: str, status: int, then: str, body: bytes) -> None:
    """A body is rendered once, unless the server requests it again (307, 308)."""
    settings = {"request.url": f"{server.url}/moved/{status}/there", "request.method": method, "request.body": "b"}
    sent(settings, Record("1", {}))
    _, (command, path, sent_body, headers) = server.seen
    assert (command, path, sent_body) == (then, "/there", body)
    assert ("content-type" in headers) == bool(body)


def test_a_login_does_not_follow_to_another_host(server: Server) -> None:
    elsewhere = f"localhost:{server.server_port}"
    settings = {"request.url": f"{server.url}/moved/307//{elsewhere}/there", "headers.Authorization": "Bearer key"}
    sent(settings, Record("1", {}))
    first, second = server.seen
    assert second[3]["host"] == elsewhere and second[1] == "/there"
    assert first[3]["authorization"] == "Bearer key" and "authorization" not in second[3]


def test_redirects_end(server: Server) -> None:
    """Go gives up after ten requests."""
    [nack] = sent({"request.url": server.url + "/moved/302"}, Record("1", {}))
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable" and "redirected 10 times" in nack.message
    assert len(server.seen) == 10


def test_the_login_of_the_url_is_sent(server: Server) -> None:
    """As Go's client does; an own header takes precedence."""
    url = server.url.replace("//", "//user:p%40ss@")
    sent({"request.url": url}, Record("1", {}))
    sent({"request.url": url, "headers.authorization": "Bearer key"}, Record("1", {}))
    assert [seen[3]["authorization"] for seen in server.seen] == ["Basic dXNlcjpwQHNz", "Bearer key"]


def test_the_record_may_give_the_whole_url(server: Server) -> None:
    url = server.url + "/x?b=2&a=2&a=1"
    [record, nack] = sent(
        {"request.url": "{{ .Payload.After.u }}"}, *(Record("1", {}, {"u": u}) for u in (url, "127.0.0.1"))
    )
    assert record.after == b"hello, /x?a=2&a=1&b=2"  # sorted by name alone, as in Go
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable" and "http://" in nack.message


def test_a_nack_has_the_payload_that_was_sent(server: Server) -> None:
    """The dead letter of a record whose status can't be stored has its own payload, not the response."""
    record = Record("1", {}, {"a": 1})
    [nack] = sent({"request.url": server.url, "response.status": ".Payload.After.status"}, record)
    assert isinstance(nack, Nack) and nack.code == "field.unresolved"
    assert record.after == {"a": 1}


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ({"min": "1s", "max": "5s"}, [1, 2, 4, 5, 5]),
        ({"min": "0s", "max": "0s"}, [0.1, 0.2, 0.4, 0.8, 1.6]),
        ({"min": "1s", "max": "5s", "factor": "0.5"}, [1, 1, 1, 1, 1]),
        ({"min": "9s", "max": "5s"}, [5, 5, 5, 5, 5]),
        ({"min": "", "max": ""}, [0.1, 0.2, 0.4, 0.8, 1.6]),
    ],
)
def test_waits(backoff: dict[str, str], waits: list[float]) -> None:
    """Waits grow from the first to the longest; 0 stands for 100 ms and 10 s, as in Conduit."""
    settings = {"request.url": "http://h/", **{f"backoffRetry.{name}": value for name, value in backoff.items()}}
    assert list(islice(backoff_waits(WebhookHttpSettings.model_validate(settings)), 5)) == waits


def test_waits_have_no_end() -> None:
    settings = WebhookHttpSettings.model_validate({"request.url": "http://h/"})
    assert next(islice(backoff_waits(settings), 2000, None)) == 5


def test_it_tries_again_and_then_gives_up(server: Server) -> None:
    retry = {"backoffRetry.min": "1ms", "backoffRetry.count": "2"}
    assert sent({"request.url": server.url + "/fail/2", **retry}, Record("1", {}))[0].after == b"hello, /fail/2"
    assert len(server.seen) == 3
    server.seen.clear()
    [nack] = sent({"request.url": server.url + "/fail/9", **retry}, Record("1", {}, {"a": 1}))
    assert isinstance(nack, Nack) and nack.code == "webhook.status" and "answered 503: hello" in nack.message
    assert len(server.seen) == 3


def test_no_answer_is_a_nack_that_tells_no_secret(server: Server) -> None:
    server.shutdown()
    server.server_close()
    url = f"http://user:secret@127.0.0.1:{server.server_port}/secret?key=secret"
    record = Record("1", {}, {"a": 1})
    [nack] = sent({"request.url": url}, record)
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable"
    assert "secret" not in nack.message and f"127.0.0.1:{server.server_port}" in nack.message
    assert record.after == {"a": 1}


@pytest.mark.parametrize("path", ["drip", "continue"])
def test_an_answer_that_does_not_end_in_time_is_none(server: Server, path: str) -> None:
    """Each of its bytes comes in time."""
    [nack] = sent({"request.url": f"{server.url}/{path}", "request.timeout": "500ms"}, Record("1", {}))
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable" and "after 0.5s" in nack.message


@pytest.mark.parametrize(("size", "is_taken"), [("12", True), ("11", False)])
def test_an_answer_that_is_too_long_is_none(server: Server, size: str, is_taken: bool) -> None:
    [result] = sent({"request.url": f"{server.url}/long", "response.maxSize": size}, Record("1", {}))
    if is_taken:
        assert result.after == b"hello, /long"
    else:
        assert (
            isinstance(result, Nack) and result.code == "webhook.unreachable" and "response.maxSize" in result.message
        )


def test_half_an_answer_is_none(server: Server) -> None:
    [nack] = sent({"request.url": f"{server.url}/cut"}, Record("1", {}))
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable"


def test_many_at_the_same_time_keep_their_order(server: Server) -> None:
    """The server answers none before four have arrived."""
    settings = {"request.url": server.url + "/gate/{{ .Payload.After.i }}", "request.concurrency": "4"}
    records = [Record(str(i), {}, {"i": i}) for i in range(4)]
    assert [one.after for one in sent(settings, *records)] == [f"hello, /gate/{i}".encode() for i in range(4)]


def test_a_template_that_fails_is_a_nack_between_its_neighbours(server: Server) -> None:
    settings = {"request.url": server.url + "/{{ .Payload.After.a.b }}"}
    first, nack, last = sent(settings, *(Record("1", {}, {"a": a}) for a in ({"b": 1}, 5, {"b": 2})))
    assert isinstance(nack, Nack) and nack.code == "expression.failed"
    assert (first.after, last.after) == (b"hello, /1", b"hello, /2")


def test_a_field_that_can_not_take_the_answer(server: Server) -> None:
    [nack] = sent({"request.url": server.url, "response.body": ".Payload.After.a"}, Record("1", {}, b"raw"))
    assert isinstance(nack, Nack) and nack.code == "field.unresolved"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"request.url": "nowhere"},
        {"request.url": "ftp://host/"},
        {"request.url": "http://h/", "request.method": "G ET"},
        {"request.url": "http://h/", "response.status": ".Payload.After"},
        {"request.url": "http://h/", "response.body": ".Position"},
        {"request.url": "http://h/", "request.contentType": "a", "headers.Content-Type": "b"},
        {"request.url": "http://h/", "backoffRetry.count": "-1"},
        {"request.url": "http://h/", "request.concurrency": "0"},
        {"request.url": "http://h/{{ .Nope"},
        {"request.url": "http://h/", "headers.X Key": "a"},
        {"request.url": "http://h/", "headers.Schlüssel": "a"},
        {"request.url": "http://h/", "headers.Authorization": "Bearer\nkey"},
        {"request.url": "http://h/", "request.contentType": "text\r\nplain"},
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make("webhook.http", settings)


@pytest.mark.parametrize(
    ("settings", "reads_key"),
    [
        ({}, False),
        ({"request.body": "{{ .Key }}"}, True),
        ({"response.body": ".Key.answer"}, True),
        ({"response.status": ".Key.status"}, True),
        ({"response.status": ".Metadata.status"}, False),
    ],
)
def test_a_key_that_takes_a_part_of_the_response_is_read(settings: dict[str, str], reads_key: bool) -> None:
    """Without it a raw key, into which no status fits, would be taken for a missing one."""
    assert make("webhook.http", {"request.url": "http://h", **settings}).reads_key is reads_key


def test_it_says_that_it_is_not_deterministic() -> None:
    [page] = [page for page in processor_pages(load_plugins({})) if page.name == "webhook.http"]
    assert any("not deterministic" in note for note in page.notes)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_address_can_be_refused(server: Server, host: str) -> None:
    settings = {"request.url": f"http://{host}:{server.server_port}", "request.allowPrivate": "false"}
    [nack] = sent(settings, Record("1", {}, {"a": 1}))
    assert isinstance(nack, Nack) and nack.code == "webhook.unreachable" and "no public address" in nack.message
    assert server.seen == []


def test_a_redirect_to_a_private_address_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own address stands for a public one here, but another spelling of it does not."""
    monkeypatch.setattr(public_network, "is_public", lambda address: address == "127.0.0.1")
    settings = {"request.url": f"{server.url}/elsewhere", "request.allowPrivate": "false"}
    [nack] = sent(settings, Record("1", {}, {"a": 1}))
    assert isinstance(nack, Nack) and "no public address" in nack.message
    assert [path for _, path, *_ in server.seen] == ["/elsewhere"]


def test_a_public_address_is_reached(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_network, "is_public", lambda address: address == "127.0.0.1")
    settings = {"request.url": f"{server.url}/moved/302/there", "request.allowPrivate": "false"}
    assert sent(settings, Record("1", {}))[0].after == b"hello, /there"

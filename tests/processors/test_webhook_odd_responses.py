"""``webhook.http`` against servers that say more than an answer, and with URLs that are none."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from lab.http_server import QuietHandler, serving
from processors.conftest import make

from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack


class Talking(QuietHandler):
    """Sends the statuses in the path before its answer, which is the request's body: ``/102/103``."""

    protocol_version = "HTTP/1.1"

    def respond(self) -> None:
        body = self.body
        for status in self.path.strip("/").split("/"):
            self.send_response_only(int(status))
            self.send_header("Link", "</style.css>")
            self.end_headers()
        self.answer(200, body)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Talking)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("before", ["100", "103", "102/103/100/103"])
def test_each_record_gets_its_own_answer(url: str, before: str) -> None:
    """The first got the empty 103 in place of its answer, and the second the answer of the first."""
    subject = make("webhook.http", {"request.url": f"{url}/{before}", "request.body": "{{ .Payload.After }}"})
    results = subject.process_block([Record(str(number), {}, b"body %d" % number) for number in range(3)])
    assert [result.after for result in results if isinstance(result, Record)] == [b"body 0", b"body 1", b"body 2"]


def test_a_template_that_gives_no_url_is_told() -> None:
    subject = make("webhook.http", {"request.url": "{{ .Payload.After.url }}"})
    [nack] = subject.process_block([Record("1", {}, {"url": "http://[abc/"})])
    assert nack == Nack("webhook.unreachable", "request.url is no URL: Invalid IPv6 URL")

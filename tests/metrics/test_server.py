"""The page over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from conduit_dagster.metrics.collectors import MetricsServer, serve
from conduit_dagster.recovery.errors import FatalError


class Answer(Collector):
    """Returns what it is told to, or fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def collect(self) -> Iterator[Metric]:
        if self.error is not None:
            raise self.error
        yield GaugeMetricFamily("mine", "Mine.", 7)


@pytest.fixture
def answer() -> Answer:
    return Answer()


@pytest.fixture
def served(answer: Answer) -> Iterator[MetricsServer]:
    with capture_logs():
        found = serve("127.0.0.1", 0, answer)
    yield found
    found.close()


def get(served: MetricsServer) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(served.url, timeout=60) as response:
        content: Any = response.read()
        assert response.headers["Content-Type"].startswith("text/plain")
    return content.decode()


def test_it_is_scraped(served: MetricsServer) -> None:
    text = get(served)
    assert "\nmine 7.0\n" in text
    assert "\nconduit_metrics_up 1.0\n" in text


def test_a_scrape_that_fails_says_so_and_the_next_one_works(served: MetricsServer, answer: Answer) -> None:
    answer.error = RuntimeError("postgresql://me:hunter2@host is away")
    with capture_logs() as logs:
        text = get(served)
    assert "\nconduit_metrics_up 0.0\n" in text
    assert "mine" not in text
    assert [line["cause"] for line in logs] == ["RuntimeError"]
    assert "hunter2" not in str(logs)
    answer.error = None
    assert "\nmine 7.0\n" in get(served)


def test_an_address_in_use_is_one_error(served: MetricsServer, answer: Answer) -> None:
    port = served.server.server_port
    with pytest.raises(FatalError) as caught:
        serve("127.0.0.1", port, answer)
    error = caught.value
    assert (error.code, error.place) == ("environment.metrics_address", f"127.0.0.1:{port}")
    assert error.message == f"metrics can't be served at 127.0.0.1:{port}: Address already in use"
    assert error.fix == "name another port, or end what listens there"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_somebody_else_is_one_error(host: str, answer: Answer) -> None:
    with pytest.raises(FatalError) as caught:
        serve(host, 0, answer)
    assert caught.value.code == "environment.metrics_address"
    assert caught.value.fix is not None and caught.value.fix.startswith("name an address of this machine")


def test_the_address_is_free_again_afterwards(answer: Answer) -> None:
    with capture_logs() as logs:
        first = serve("127.0.0.1", 0, answer)
        port = first.server.server_port
        first.close()
        again = serve("127.0.0.1", port, answer)
    try:
        assert "mine" in get(again)
    finally:
        again.close()
    assert [line["url"] for line in logs] == [f"http://127.0.0.1:{port}/metrics"] * 2

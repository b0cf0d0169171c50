"""The metrics page over HTTP, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from conduit_dagster.recovery.errors import FatalError

_UP = "conduit_metrics_up"
log = structlog.get_logger("conduit.metrics")


@dataclass(frozen=True)
class MetricsServer:
    """A metrics page that is being served."""

    url: str
    server: WSGIServer
    thread: threading.Thread

    def close(self) -> None:
        """Stop the server; a scrape in progress may get no answer."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class _Guarded(Collector):
    """Reports a failed scrape, for example when the state store is unreachable, instead of exporting nothing."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._turn = collector, threading.Lock()

    def collect(self) -> Iterator[Metric]:
        up, found = 1, list[Metric]()
        try:
            # one after the other: two threads must not query a source at once
            with self._turn:
                found = list(self._collector.collect())
        except Exception as error:  # noqa: BLE001  # of any library: the next scrape may get through
            log.warning("metrics could not be collected", cause=type(error).__name__)
            up = 0
        yield GaugeMetricFamily(_UP, "0 where the metrics could not be collected.", up)
        yield from found


def serve(host: str, port: int, collector: Collector) -> MetricsServer:
    """Serve ``/metrics`` until closed, or until the process ends. Port 0: any free one.

    Raises ``FatalError`` (``environment.metrics_address``).
    """
    registry = CollectorRegistry()
    registry.register(_Guarded(collector))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise _unusable(host, port, error) from error
    served = MetricsServer(f"http://{_shown(host)}:{server.server_port}/metrics", server, thread)
    log.info("metrics are served", url=served.url)
    return served


def _unusable(host: str, port: int, error: OSError) -> FatalError:
    why: Any = error.strerror or error
    return FatalError(
        f"metrics can't be served at {_shown(host)}:{port}: {why}",
        code="environment.metrics_address",
        place=f"{_shown(host)}:{port}",
        fix="name another port, or end what listens there",
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host

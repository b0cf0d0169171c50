"""``metrics``: the metrics of all pipelines in the state store, in Prometheus format. Starts no Spark."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from conduit_dagster.cli.verb import Outcome, Paths, current_catalogue, current_project, usage_error, verb
from conduit_dagster.daemon_threads import BY_HAND

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa
    from prometheus_client.registry import Collector

    from conduit_dagster.metrics.collectors import Lags, LiveMetrics, MetricsServer, SourceId, StoredMetrics
    from conduit_dagster.metrics.source_lag import SourceLag

Address = Annotated[
    str | None, typer.Option("--serve", metavar="HOST:PORT", help="Serve them at /metrics until interrupted.")
]
RunAddress = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics at /metrics.")
]
_SCRAPE: Final = 3.0
"""Seconds that the sources have to tell their lag at a scrape: Prometheus gives a whole page up after ten."""
_ENDS: Final = (signal.SIGINT, signal.SIGTERM)


@verb("metrics")
def metrics(address: Address = None, paths: Paths = None) -> Outcome:
    """Print or serve the metrics of all pipelines of the project. PATH: files elsewhere, for the lag."""
    from conduit_dagster.cli.terminal import configure_logs
    from conduit_dagster.state.claim import existing_store, project_store

    paths = paths or []
    project = current_project()
    configure_logs(project.settings.log)
    if address is not None:
        return _serve(address, _stored(project_store(project), paths, _SCRAPE))
    store = existing_store(project)
    if store is None:
        return Outcome("", {"metrics": []})
    return _page(_stored(store, paths, BY_HAND))


def _stored(store: sa.Engine, paths: list[str], seconds: float) -> StoredMetrics:
    """``seconds``: how long all sources together have to tell their lag."""
    from conduit_dagster.metrics.collectors import StoredMetrics

    return StoredMetrics(store, _lags(store, paths, seconds))


def _lags(store: sa.Engine, paths: list[str], seconds: float) -> Lags:
    """Return a function that asks sources for their lag, as the pipelines' files define them now."""
    from conduit_dagster.engine.registering import attach_kept_to_look
    from conduit_dagster.metrics.source_lag import source_lags

    catalogue = current_catalogue(paths)
    for bound in catalogue.bound:
        with suppress(Exception):  # any plugin's code: its lag is then unknown
            attach_kept_to_look(bound.compiled, store)
    known = {(bound.id, node.id): node.source for bound in catalogue.bound for node in bound.compiled.sources}

    def lags(positions: Mapping[SourceId, Any]) -> Mapping[SourceId, SourceLag]:
        return source_lags({key: (known[key], at) for key, at in positions.items() if key in known}, seconds)

    return lags


def _page(collector: Collector) -> Outcome:
    from conduit_dagster.metrics.families import page

    found = list(collector.collect())
    text = page(found)
    samples = [
        {"name": sample.name, "labels": dict(sample.labels), "value": sample.value}
        for metric in found
        for sample in metric.samples
    ]
    return Outcome("", {"metrics": samples}, show=lambda _: print(text, end=""))


def _serve(address: str, collector: Collector) -> Outcome:
    # block before the server's threads are created, which inherit the mask: sigwait gets the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        served = served_at(address, collector, "--serve")
        signal.sigwait(_ENDS)
        served.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Outcome("metrics are no longer served", {"url": served.url})


def run_metrics(address: str | None) -> LiveMetrics | None:
    """Start serving the metrics of a ``run``, before the run itself starts; return None if no address is given.

    Raises ``FatalError`` (``usage.address``, ``environment.metrics_address``).
    """
    if address is None:
        return None
    from conduit_dagster.metrics.collectors import LiveMetrics

    live = LiveMetrics()
    served_at(address, live, "--metrics")
    return live


def served_at(address: str, collector: Collector, option: str) -> MetricsServer:
    """Serve metrics at ``HOST:PORT``."""
    from conduit_dagster.config.project_settings import address_of
    from conduit_dagster.metrics.collectors import serve

    parts = address_of(address)
    if parts is None:
        fix = f"{option} 127.0.0.1:9400, or 0.0.0.0:9400 for other machines too"
        raise usage_error(f"{option} {address} is not an address", "address", fix)
    return serve(*parts, collector)

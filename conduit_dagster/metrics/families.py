"""The names of all metrics, and conversion of facts to samples. ``docs/metrics.md`` is their reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from conduit_dagster.metrics.source_lag import UNKNOWN_LAG, SourceLag
from conduit_dagster.recovery.policy import PipelineStatus

BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram buckets of step seconds; the last bucket is unbounded."""


@dataclass(frozen=True)
class SourceFacts:
    """Records of one source; ``read`` = ``acked`` + ``nacked``, filtered ones are acked."""

    read: int = 0
    acked: int = 0
    filtered: int = 0
    nacked: int = 0
    lag: SourceLag = UNKNOWN_LAG


@dataclass(frozen=True)
class DestinationFacts:
    """Counts of one destination."""

    records: int = 0
    bytes: int | None = None


@dataclass(frozen=True)
class StepTimes:
    """Durations of steps; ``classes`` counts them by :data:`BUCKETS`, with one more class for longer ones."""

    classes: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class LastStep:
    """The newest step that is done."""

    seconds: float
    at: float
    """Time of its end, in seconds since the epoch."""


@dataclass(frozen=True)
class PipelineFacts:
    """Figures of one pipeline at one moment."""

    pipeline: str
    status: str
    sources: dict[str, SourceFacts] = field(default_factory=dict[str, SourceFacts])
    destinations: dict[str, DestinationFacts] = field(default_factory=dict[str, DestinationFacts])
    dead_letters: int | None = None
    restarts: int | None = None
    restart_at: float | None = None
    """When the pending restart is due, in seconds since the epoch."""
    last: LastStep | None = None
    times: StepTimes | None = None


Sample = tuple[Sequence[str], float | None]
"""Label values, and the number; with None nothing is exported."""
_SOURCE = ("pipeline", "source")
_DESTINATION = ("pipeline", "destination")
_PIPELINE = ("pipeline",)


def families(all_facts: Iterable[PipelineFacts]) -> Iterator[Metric]:
    """Yield every metric that has a sample, always in the same order."""
    facts = list(all_facts)
    return (metric for metric in _all(facts) if metric.samples)


def _all(facts: list[PipelineFacts]) -> Iterator[Metric]:
    sources = [((one.pipeline, name), source) for one in facts for name, source in one.sources.items()]
    yield _counter(
        "conduit_pipeline_records_read",
        "Records read and handled to their end.",
        _SOURCE,
        ((at, source.read) for at, source in sources),
    )
    yield _counter(
        "conduit_pipeline_records_acked",
        "Records delivered everywhere, or filtered.",
        _SOURCE,
        ((at, source.acked) for at, source in sources),
    )
    yield _counter(
        "conduit_pipeline_records_filtered",
        "Records that a processor dropped; they are acked too.",
        _SOURCE,
        ((at, source.filtered) for at, source in sources),
    )
    yield _counter(
        "conduit_pipeline_records_nacked",
        "Records that were refused.",
        _SOURCE,
        ((at, source.nacked) for at, source in sources),
    )
    yield _gauge(
        "conduit_source_lag",
        "How far the source is behind its newest data, in its unit.",
        (*_SOURCE, "unit"),
        (((*at, source.lag.unit), source.lag.amount) for at, source in sources),
    )
    yield _gauge(
        "conduit_source_lag_seconds",
        "How long the oldest data that the source has not delivered may have waited.",
        _SOURCE,
        ((at, source.lag.seconds) for at, source in sources),
    )
    yield from _of_destinations(facts)
    yield from _of_steps(facts)
    yield from _of_life(facts)


def _of_destinations(facts: list[PipelineFacts]) -> Iterator[Metric]:
    got = [((one.pipeline, name), it) for one in facts for name, it in one.destinations.items()]
    yield _counter(
        "conduit_destination_records_delivered",
        "Records that the destination took.",
        _DESTINATION,
        ((at, it.records) for at, it in got),
    )
    yield _counter(
        "conduit_destination_bytes",
        "Bytes of the records that the destination took, as it was given them.",
        _DESTINATION,
        ((at, it.bytes) for at, it in got),
    )
    yield _counter(
        "conduit_pipeline_dead_letters",
        "Nacked records that the dead-letter queue took.",
        _PIPELINE,
        (((one.pipeline,), one.dead_letters) for one in facts),
    )


def _of_steps(facts: list[PipelineFacts]) -> Iterator[Metric]:
    histogram = HistogramMetricFamily("conduit_step_seconds", "How long steps took.", labels=_PIPELINE)
    for one in facts:
        if one.times is not None:
            histogram.add_metric((one.pipeline,), _buckets(one.times), one.times.seconds)
    yield histogram
    last = [((one.pipeline,), one.last) for one in facts if one.last is not None]
    yield _gauge(
        "conduit_last_step_seconds",
        "How long the newest step took.",
        _PIPELINE,
        ((at, step.seconds) for at, step in last),
    )
    yield _gauge(
        "conduit_last_step_timestamp_seconds",
        "When the newest step was done, in seconds since the epoch.",
        _PIPELINE,
        ((at, step.at) for at, step in last),
    )


def _buckets(times: StepTimes) -> list[tuple[str, float]]:
    ends = [*(str(end) for end in BUCKETS), "+Inf"]
    return [(end, float(number)) for end, number in zip(ends, accumulate(times.classes), strict=True)]


def _of_life(facts: list[PipelineFacts]) -> Iterator[Metric]:
    yield _counter(
        "conduit_pipeline_restarts",
        "Restarts after a failure.",
        _PIPELINE,
        (((one.pipeline,), one.restarts) for one in facts),
    )
    yield _gauge(
        "conduit_pipeline_status",
        "1 for the status that the pipeline has, 0 for the others.",
        (*_PIPELINE, "status"),
        (((one.pipeline, status), float(one.status == status)) for one in facts for status in PipelineStatus),
    )
    yield _gauge(
        "conduit_pipeline_restart_at_seconds",
        "When the pending restart is due, in seconds since the epoch.",
        _PIPELINE,
        (((one.pipeline,), one.restart_at) for one in facts),
    )


def _counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def _gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def page(metrics: Iterable[Metric]) -> str:
    """Return all samples in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return generate_latest(registry).decode()

"""Facts as samples; the documentation names all of them and no others."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from conduit_dagster.metrics.families import (
    BUCKETS,
    DestinationFacts,
    LastStep,
    PipelineFacts,
    SourceFacts,
    StepTimes,
    families,
    page,
)
from conduit_dagster.metrics.source_lag import SourceLag

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
FULL = PipelineFacts(
    "p",
    "recovering",
    {"in": SourceFacts(10, 8, 3, 2, SourceLag(0, "bytes", 1.5))},
    {"out": DestinationFacts(5, 0)},
    dead_letters=2,
    restarts=1,
    restart_at=1.5,
    last=LastStep(0.25, 9.0),
    times=StepTimes((1, 2, *[0] * (len(BUCKETS) - 2), 4), 17.5),
)
SUFFIXES = ("_bucket", "_sum", "_count")


def samples(*facts: PipelineFacts) -> dict[tuple[str, ...], float]:
    """What Prometheus would read: name and labels to value."""
    found = text_string_to_metric_families(page(families(facts)))
    return {(s.name, *s.labels.values()): s.value for family in found for s in family.samples}


def test_every_fact_has_its_sample() -> None:
    read = samples(FULL)
    assert read["conduit_pipeline_records_read_total", "p", "in"] == 10
    assert read["conduit_pipeline_records_acked_total", "p", "in"] == 8
    assert read["conduit_pipeline_records_filtered_total", "p", "in"] == 3
    assert read["conduit_pipeline_records_nacked_total", "p", "in"] == 2
    assert read["conduit_destination_records_delivered_total", "out", "p"] == 5
    assert read["conduit_pipeline_restart_at_seconds", "p"] == 1.5
    assert {k[2]: v for k, v in read.items() if k[0] == "conduit_pipeline_status"} == {
        "running": 0, "recovering": 1, "degraded": 0, "stopped": 0,
    }  # fmt: skip


def test_known_zeros_are_exported() -> None:
    read = samples(FULL)
    assert read["conduit_source_lag", "p", "in", "bytes"] == 0
    assert read["conduit_source_lag_seconds", "p", "in"] == 1.5
    assert read["conduit_destination_bytes_total", "out", "p"] == 0


def test_the_histogram_counts_upwards() -> None:
    read = samples(FULL)
    buckets = {float(k[1]) if k[1] != "p" else float(k[2]): v for k, v in read.items() if k[0].endswith("_bucket")}
    assert (buckets[0.1], buckets[0.25], buckets[600.0], buckets[float("inf")]) == (1, 3, 3, 7)
    assert (read["conduit_step_seconds_count", "p"], read["conduit_step_seconds_sum", "p"]) == (7, 17.5)


def test_what_is_not_known_is_absent() -> None:
    names = {
        name for name, *_ in samples(PipelineFacts("p", "stopped", {"in": SourceFacts()}, {"o": DestinationFacts()}))
    }
    assert names == {
        "conduit_pipeline_records_read_total",
        "conduit_pipeline_records_acked_total",
        "conduit_pipeline_records_filtered_total",
        "conduit_pipeline_records_nacked_total",
        "conduit_destination_records_delivered_total",
        "conduit_pipeline_status",
    }
    assert samples() == {}


def test_any_id_is_a_label() -> None:
    odd = PipelineFacts('a"b\\c\nd', "running", restarts=3)
    assert samples(odd)["conduit_pipeline_restarts_total", 'a"b\\c\nd'] == 3


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Name to type and labels, as the table has them."""
    rows = [line.split("|")[1:-1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| `conduit_")]
    return {
        name.strip(" `"): (kind.strip(), frozenset(label.strip() for label in labels.split(",") if label.strip()))
        for name, kind, labels, *_ in rows
    }


def test_the_document_names_what_is_exported() -> None:
    exported = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels) - {"le"},
        )
        for family in families([FULL])
    }
    # of served pages only: test_server looks at it
    assert documented() == {**exported, "conduit_metrics_up": ("gauge", frozenset())}

"""CASES section A, C14 and C21 on the real engine; each test is named after its case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.stopping import forced_stop_once, run_until
from lab.support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.overview import pipeline_rows, source_rows


def numbers(count: int) -> list[dict[str, int]]:
    return [{"i": i} for i in range(1, count + 1)]


def fails_at(*wanted: int) -> dict[str, Any]:
    return processor(
        "refuse", "error", f"after.i in [{', '.join(map(str, wanted))}]", message="bad {{ .Payload.After.i }}"
    )


def stored(lab: Lab) -> dict[str, Any]:
    with lab.store() as database:
        row = pipeline_rows(database)["p"]
        row["sources"] = {source["id"]: source for source in source_rows(database, "p")}
    return row


def append(name: str, letter: str) -> dict[str, Any]:
    return processor(name, "field.set", field=".Payload.After.path", expression=f"after.path + '{letter}'")


def test_a01_order_of_processors(lab: Lab) -> None:
    """Source's, then the pipeline's, then each destination's processors, in list order, on independent copies."""
    lab.write("in.jsonl", [{"path": ""}])
    lab.write("in2.jsonl", [{"path": "-"}])
    second = {**source("./in2.jsonl"), "id": "in2", "processors": [DECODE, append("t", "t")]}
    lab.pipeline(
        connectors=[
            source(processors=[DECODE, append("a", "a"), append("b", "b")]),
            second,
            destination("x", processors=[append("e", "e"), append("f", "f")]),
            destination("y", processors=[append("g", "g")]),
        ],
        processors=[append("c", "c"), append("d", "d")],
    )
    assert lab.run().error is None
    assert lab.documents("x.jsonl") == [{"path": "abcdef"}, {"path": "-tcdef"}]
    assert lab.documents("y.jsonl") == [{"path": "abcdg"}, {"path": "-tcdg"}]


def test_a02_a_filtered_record_is_acked(lab: Lab) -> None:
    lab.write("in.jsonl", numbers(5))
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, processor("third", "filter", "after.i == 3")],
    )
    result = lab.run()
    assert lab.documents("out.jsonl") == [{"i": i} for i in (1, 2, 4, 5)]
    assert (result.progress.acked, result.progress.filtered) == (5, 1)
    position = stored(lab)["sources"]["in"]["position"]
    assert position["files"][0]["offset"] == (lab.root / "in.jsonl").stat().st_size


def test_a05_a_nack_without_a_queue_stops_before_it(lab: Lab) -> None:
    """1..4 are acked, 5 never is, in this run or the next; the error is kept on the pipeline."""
    lab.write("in.jsonl", numbers(8))
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, fails_at(5)])
    for _ in range(2):
        result = lab.run()
        assert result.status == "degraded"
        assert result.error is not None
        assert (result.error.message, result.error.node) == ("bad 5", "p:refuse")
        assert lab.documents("out.jsonl") == numbers(4)
    row = stored(lab)
    assert row["sources"]["in"]["records"] == 4
    assert (row["status"], row["error"]["message"], row["error"]["fatal"]) == ("degraded", "bad 5", True)


def test_a06_a_dead_letter_is_acked_and_the_order_kept(lab: Lab) -> None:
    lab.write("in.jsonl", numbers(8))
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, fails_at(5)],
        **{"dead-letter-queue": queue(5, 2)},
    )
    result = lab.run()
    assert (result.status, result.error) == ("stopped", None)
    assert lab.documents("out.jsonl") == [{"i": i} for i in (1, 2, 3, 4, 6, 7, 8)]
    assert lab.letters() == [("p:refuse", "bad 5", {"i": 5})]
    assert stored(lab)["sources"]["in"]["records"] == 8


BLOCKING = """
import time
from pathlib import Path
from conduit_dagster.sdk import Processor

class Gate(Processor):
    name = "gate"
    def process(self, record):
        Path("FOLDER/started").touch()
        while not Path("FOLDER/go").exists():
            time.sleep(0.01)
        return record
"""


def test_a09_graceful_stop_finishes_the_batch_in_flight(lab: Lab) -> None:
    """The batch is finished, acked, checkpointed; status stopped; nothing is redelivered at the next start."""
    lab.write("in.jsonl", numbers(3))
    lab.write("plugins/gate.py", [BLOCKING.replace("FOLDER", str(lab.root))])
    lab.pipeline(
        trigger="continuous",
        connectors=[source(), destination()],
        processors=[DECODE, processor("gate", "gate")],
    )

    def then(stop: StopFlag) -> None:
        stop.request()
        lab.write("in.jsonl", [{"i": 4}], mode="a")
        (lab.root / "go").touch()

    result = run_until(lab, (lab.root / "started").exists, "the processor has a record", then, drain=False)
    assert (result.status, result.reason, result.error) == ("stopped", "user", None)
    assert lab.documents("out.jsonl") == numbers(3)
    assert stored(lab)["status"] == "stopped"
    lab.run()
    assert lab.documents("out.jsonl") == numbers(4)


def test_a09_forced_stop_prepares_nothing(lab: Lab) -> None:
    """A forced stop cancels the job; the records are read again at the next start, and none is duplicated."""
    lab.write("in.jsonl", numbers(3))
    lab.write("plugins/gate.py", [BLOCKING.replace("FOLDER", str(lab.root))])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, processor("gate", "gate")])
    forced_stop_once(lab, (lab.root / "started").exists, "the processor has a record")
    assert lab.documents("out.jsonl") == []
    (lab.root / "go").touch()
    lab.run()
    assert lab.documents("out.jsonl") == numbers(3)


def test_a11_order_is_kept_within_each_source(lab: Lab) -> None:
    lab.write("in.jsonl", [{"s": 1, "i": i} for i in range(3000)])
    lab.write("in2.jsonl", [{"s": 2, "i": i} for i in range(2000)])
    lab.pipeline(connectors=[source(), {**source("./in2.jsonl"), "id": "in2"}, destination()], processors=[DECODE])
    lab.run(parallelism=4)
    rows = lab.documents("out.jsonl")
    for number, count in ((1, 3000), (2, 2000)):
        assert [row["i"] for row in rows if row["s"] == number] == list(range(count))


@pytest.mark.parametrize(
    ("connectors", "code"),
    [([destination()], "pipeline.no_source"), ([source()], "pipeline.no_destination")],
)
def test_a12_no_source_or_no_destination_is_refused(
    tmp_path: Path, connectors: list[dict[str, Any]], code: str
) -> None:
    """Refused by validation; such a pipeline cannot be bound, so nothing could start it."""
    lab = Lab(tmp_path)
    lab.pipeline(connectors=connectors)
    catalogue = lab.catalogue()
    assert code in [finding.code for finding in catalogue.findings]
    assert catalogue.get("p") is None


def test_a13_the_third_nack_in_the_window_stops_the_pipeline(lab: Lab) -> None:
    lab.write("in.jsonl", numbers(9))
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, fails_at(2, 4, 6)],
        **{"dead-letter-queue": queue(5, 2)},
    )
    result = lab.run()
    assert lab.documents("out.jsonl") == [{"i": i} for i in (1, 3, 5)]
    assert [after for _, _, after in lab.letters()] == [{"i": 2}, {"i": 4}]
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("nacks.threshold_exceeded", True)
    assert "bad 6" in result.error.message
    assert stored(lab)["sources"]["in"]["records"] == 5


def test_a13_the_window_is_kept_over_steps_and_runs(lab: Lab) -> None:
    """With one record per step the same nacks stop at the same record."""
    lab.write("in.jsonl", numbers(5))
    config: dict[str, Any] = {
        "connectors": [source(), destination()],
        "processors": [DECODE, fails_at(2, 4, 6)],
        "dead-letter-queue": queue(5, 2),
        "delivery": {"batch-size": 1},
    }
    lab.pipeline(**config)
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": i} for i in (6, 7)], mode="a")
    result = lab.run()
    assert result.error is not None
    assert result.error.code == "nacks.threshold_exceeded"
    assert lab.documents("out.jsonl") == [{"i": i} for i in (1, 3, 5)]


def test_a14_by_default_the_first_nack_stops_with_the_original_error(lab: Lab) -> None:
    lab.write("in.jsonl", numbers(4))
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, fails_at(3)],
        **{"dead-letter-queue": queue(1, 0)},
    )
    result = lab.run()
    assert result.error is not None
    assert result.error.message == "bad 3"
    assert lab.documents("dead.jsonl") == []
    assert lab.documents("out.jsonl") == numbers(2)


def test_a15_window_0_takes_every_nack(lab: Lab) -> None:
    lab.write("in.jsonl", numbers(50))
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, fails_at(*range(1, 50))],
        **{"dead-letter-queue": queue()},
    )
    result = lab.run()
    assert result.error is None
    assert len(lab.letters()) == 49
    assert lab.documents("out.jsonl") == [{"i": 50}]


def test_a16_the_window_must_be_larger_than_the_threshold(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.pipeline(connectors=[source(), destination()], **{"dead-letter-queue": queue(2, 2)})
    found = [finding for finding in lab.catalogue().findings if finding.is_error]
    assert [finding.path for finding in found] == ["/pipelines/0/dead-letter-queue/window-size"]
    assert lab.catalogue().get("p") is None


def test_c14_namespaces_are_searched_unanchored(lab: Lab) -> None:
    names = ["events", "emails", "emails_archive", "events_old"]
    lab.write("in.jsonl", [{"ns": name} for name in names])
    tag = processor("tag", "field.set", field=".Metadata.opencdc.collection", value="{{ .Payload.After.ns }}")
    lab.pipeline(
        connectors=[
            source(processors=[DECODE, tag]),
            destination("all"),
            destination("exact", namespace="^events$"),
            destination("part", namespace="emails"),
        ]
    )
    result = lab.run()
    assert [row["ns"] for row in lab.documents("all.jsonl")] == names
    assert [row["ns"] for row in lab.documents("exact.jsonl")] == ["events"]
    assert [row["ns"] for row in lab.documents("part.jsonl")] == ["emails", "emails_archive"]
    assert (result.progress.acked, result.progress.filtered) == (4, 0)


def test_c21_one_branch_never_sees_the_others_changes(lab: Lab) -> None:
    lab.write("in.jsonl", [{"a": {"b": [1, {"c": 2}]}, "m": 1}])
    change = processor("deep", "field.set", field=".Payload.After.a.b", value="gone")
    drop = processor("drop", "field.exclude", fields=".Payload.After.m")
    lab.pipeline(
        connectors=[
            source(),
            destination("x", processors=[change]),
            destination("y", processors=[drop]),
            destination("z"),
        ],
        processors=[DECODE],
    )
    lab.run()
    assert lab.documents("x.jsonl") == [{"a": {"b": "gone"}, "m": 1}]
    assert lab.documents("y.jsonl") == [{"a": {"b": [1, {"c": 2}]}}]
    assert lab.documents("z.jsonl") == [{"a": {"b": [1, {"c": 2}]}, "m": 1}]

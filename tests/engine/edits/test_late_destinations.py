"""A destination that starts from the log comes, leaves or comes back while a step is open.

P1 to P13 are findings of an audit; the lettered ones came of checking a model of the protocol (``model/changes``).
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from engine.edits.edited import LATE, SEVEN, build, numbers, rows_of, run, step_states
from lab.chain_lab import rewound
from lab.stored_events import newest_events
from lab.support import Crashes, Lab, destination, source

from conduit_dagster.commit_log.compaction import Compactor
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.config.project import Project
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.operate.rewind import RewindTarget
from conduit_dagster.state.delivery_store import EVERYTHING, set_offsets
from conduit_dagster.state.log_store import LogStore

pytestmark = pytest.mark.slow

ENDING = (
    "after-reack", "before-publish", "after-publish", "after-delivered", "before-done",
    "after-done", "after-ack", "after-register",
)  # fmt: skip


@pytest.mark.parametrize(
    ("point", "state"), [("after-prepare:3", "prepared"), ("after-publish:3", "prepared"), ("after-plan:3", "planned")]
)
def test_p1_p2_late_destination_under_an_open_step(lab: Lab, crashes: Crashes, point: str, state: str) -> None:
    """It gets everything once and in order: records of the open step are neither lost nor before older ones."""
    lab.write("in.jsonl", rows_of(20))
    records = {"log": "records", "batch-size": 5}
    build(lab, **records)
    crashes(lab, point)
    assert step_states(lab) == ["done", "done", state]
    build(lab, LATE, **records)
    run(lab)
    assert numbers(lab) == numbers(lab, "late") == list(range(20))


@pytest.mark.parametrize("point", ["after-plan:3", "after-prepare:3"])
def test_p3_late_destination_under_an_open_step_and_compaction(lab: Lab, crashes: Crashes, point: str) -> None:
    """Compaction takes nothing that the newcomer was promised, neither at once nor after a crash in its catch-up.

    What it is promised is what the log still holds in one piece: ten entries were handled by all and are compacted.
    """
    lab.write("in.jsonl", rows_of(30, pad="x" * 200))
    small = {"log": "records", "batch-size": 5, "log-segment-size": "1KB"}
    build(lab, **small)
    crashes(lab, point)
    build(lab, LATE, **small)
    crashes(lab, "after-register")
    promised = first_promised(lab)
    assert promised < 15
    crashes(lab, "after-done:2")
    run(lab)
    run(lab)
    assert numbers(lab) == list(range(30))
    assert numbers(lab, "late") == list(range(promised, 30))


def first_promised(lab: Lab) -> int:
    with lab.store() as database:
        (event,) = (row["detail"] for row in newest_events(database, "p", 100) if row["event"] == "catch_up")
    return int(event["first"])


@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_p3_a_step_refuses_a_range_with_a_gap(lab: Lab, crashes: Crashes, point: str) -> None:
    """Entries that it reads are compacted too early: it stops, and does not skip them."""
    lab.write("in.jsonl", rows_of(20))
    build(lab, log="records", **{"batch-size": 10})
    run(lab)
    lab.write("in.jsonl", [{"i": i} for i in range(20, 25)], mode="a")
    build(lab, log="records", **{"batch-size": 10, "log-segment-size": "1B"})
    crashes(lab, "after-log")  # the segment of the first twenty is closed, and not compacted yet
    rewound(lab, "p", "in", RewindTarget("start"))
    crashes(lab, point)
    shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    assert compacted_as_if_all_were_handled(lab) == 19
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("log.gap", True)
    assert "lacks offset 0;" in result.error.message
    assert numbers(lab) == list(range(20))


def compacted_as_if_all_were_handled(lab: Lab) -> int:
    """What compaction would remove if all consumers were at the end of the log; return the number of entries."""
    project, log = Project.find(lab.root, lab.env), LogStore("p")

    with lab.store() as database, database.begin() as connection:
        for consumer in ("out", DEAD_LETTERS):
            set_offsets(connection, "p", consumer, "in", {EVERYTHING: 24}, 0)
        return (
            Compactor(LogFolder(project.log_url, "p", "in"), log, lambda work: work(connection))
            .compact(["out", DEAD_LETTERS])
            .entries
        )


BY_FIVE: dict[str, Any] = {"log": "records", "batch-size": 5}


def removed_under_an_open_step(lab: Lab, crashes: Crashes, point: str) -> None:
    """Of twenty records five went to ``out`` alone, then a step for both was cut off; now the file has no ``late``."""
    lab.write("in.jsonl", rows_of(20))
    build(lab, **BY_FIVE)
    crashes(lab, "after-done")
    build(lab, destination("late"), **BY_FIVE)
    crashes(lab, point)
    build(lab, **BY_FIVE)


@pytest.mark.parametrize("then", ENDING)
@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_c_removed_under_an_open_step_and_put_back_from_the_log(
    lab: Lab, crashes: Crashes, point: str, then: str
) -> None:
    """The step ends without it; the run is killed before or after that; when it is back, it gets everything once."""
    removed_under_an_open_step(lab, crashes, point)
    crashes(lab, then)
    build(lab, LATE, **BY_FIVE)
    run(lab)
    assert numbers(lab) == numbers(lab, "late") == list(range(20))


@pytest.mark.parametrize("point", ["after-plan", "after-prepare"])
def test_c_put_back_before_it_was_retired(lab: Lab, crashes: Crashes, point: str) -> None:
    """A run that is killed before it retires anything changes nothing: the destination does not count as returning."""
    removed_under_an_open_step(lab, crashes, point)
    crashes(lab, "after-fence")
    build(lab, LATE, **BY_FIVE)
    run(lab)
    assert numbers(lab) == list(range(20))
    assert numbers(lab, "late") == list(range(5, 20))


@pytest.mark.parametrize("point", ["after-reack", "before-publish", "after-done"])
def test_f_one_that_is_put_back_without_the_log_was_sent_nothing_by_it(lab: Lab, crashes: Crashes, point: str) -> None:
    """Whatever it was sent before it was retired belongs to another one: a replay brings it the letter of that time."""
    lab.write("in.jsonl", rows_of(10))
    build(lab, processors=[SEVEN], log="records")
    run(lab)
    build(lab, source(), destination(), LATE, processors=[SEVEN], log="records")
    run(lab)
    lab.write("in.jsonl", [{"i": 10}], mode="a")
    crashes(lab, "after-prepare")
    build(lab, log="records")
    crashes(lab, point)
    build(lab, source(), destination(), destination("late", "./again.jsonl"), log="records")
    run(lab)
    lab.replay()
    assert numbers(lab, "again") == [7]
    assert sorted(numbers(lab, "out")) == list(range(11))

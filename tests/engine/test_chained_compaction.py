"""A reader of another pipeline's log, together with compaction, dropped readers and rewinds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.chain_lab import ROWS, SMALL, chained, downstream, drop, entries, events, readers, rewound, runs, upstream
from lab.kills import at
from lab.support import Crashes, Lab, destination, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.rewind import RewindTarget
from conduit_dagster.recovery.errors import FatalError


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", ROWS)
    return lab


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kept"), [("after-plan:3", 40), ("before-stage:3", 40), ("after-done:3", 60)])
def test_compaction_keeps_what_the_reader_has_not_acked(lab: Lab, crashes: Crashes, point: str, kept: int) -> None:
    """A planned step is staged after the log was compacted."""
    upstream(lab, delivery=SMALL)
    downstream(lab, delivery={"batch-size": 20})
    runs(lab, "p", "a")
    crashes(lab, point)
    runs(lab, "a")  # a run begins with a compaction
    assert readers(lab) == {"p:in": kept}
    closed = entries(lab)[:-1]
    assert closed == [1] * (kept // 10) + [10] * (9 - kept // 10)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    runs(lab, "a")
    assert entries(lab) == [1] * 9 + [10]


def test_compaction_between_plan_and_stage_and_while_tasks_are_about_to_read(lab: Lab) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab, delivery={"batch-size": 20})
    runs(lab, "p", "a")
    with at("before-stage", lambda: runs(lab, "a"), passage=3):
        runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    assert entries(lab)[:5] == [1, 1, 1, 1, 10]


@pytest.mark.slow
@pytest.mark.parametrize("delivery", [{}, {"log": "records"}])
def test_a_prepared_step_whose_staging_is_lost_is_rebuilt_after_a_compaction(
    lab: Lab, crashes: Crashes, delivery: Any
) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab, delivery={"batch-size": 20, **delivery})
    runs(lab, "p", "a")
    crashes(lab, "after-prepare:3")
    shutil.rmtree(lab.root / ".conduit" / "staging" / "p")
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS


def test_one_that_comes_late_begins_with_what_is_whole(lab: Lab) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab)
    runs(lab, "a", "p")
    assert lab.documents("out.jsonl") == ROWS[90:]


def test_one_that_comes_late_gets_all_that_is_not_handled(lab: Lab) -> None:
    """A closed segment of which a join has used a part is compacted: the rest of it is there for a reader too."""
    lab.write("other.jsonl", ROWS[:85])
    both = [source(), {**source("./other.jsonl"), "id": "other"}]
    upstream(lab, *both, destination("first"), delivery=SMALL, **{"fan-in": "join"})
    downstream(lab, chained(connector="in"), destination("out"))
    runs(lab, "a", "a", "p")
    assert entries(lab) == [1] * 8 + [5, 10]
    assert lab.documents("out.jsonl") == ROWS[85:]
    facts = rewound(lab, "a", "in", RewindTarget("start"))
    assert facts["now"]["in"] == 85


@pytest.mark.slow
def test_of_two_readers_the_slower_one_counts(lab: Lab, crashes: Crashes) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab, delivery={"batch-size": 20})
    downstream(lab, chained(), destination("other"), id="q")
    runs(lab, "p", "q", "a", "q")
    crashes(lab, "after-done:2")
    runs(lab, "a")
    assert readers(lab) == {"p:in": 40, "q:in": 100}
    assert entries(lab)[:-1] == [1] * 4 + [10] * 5
    runs(lab, "p", "a")
    assert entries(lab)[:-1] == [1] * 9
    assert lab.documents("out.jsonl") == lab.documents("other.jsonl") == ROWS


def test_one_that_is_dropped_holds_the_log_no_more_and_is_told_what_is_gone(lab: Lab, crashes: Crashes) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab, delivery={"batch-size": 20})
    runs(lab, "p", "a")
    crashes(lab, "after-done:2")
    assert drop(lab) == {"pipeline": "a", "reader": "p:in", "source": "in", "offset": 39, "unread": 60}
    assert readers(lab) == {}
    runs(lab, "a")
    assert entries(lab)[:-1] == [1] * 9
    result = lab.run()
    assert result.error is not None and result.error.fatal
    assert result.error.code == "chain.log_gap"
    assert "40 to 49" in result.error.message
    # it keeps everything from its offset on, so nothing more is removed
    assert readers(lab) == {"p:in": 40}
    assert [row["offset"] for row in events(lab, "a", "reader_dropped")] == [40]
    assert [row["offset"] for row in events(lab, "p", "reader_dropped", "reader_back")] == [40, 40]
    assert lab.documents("out.jsonl") == ROWS[:40]
    # as the error says
    assert "conduit-dagster positions rewind p in --to 90 --force" in (result.error.fix or "")
    assert rewound(lab, "p", "in", RewindTarget("position", 90), force=True)["skipped"] == 50
    runs(lab, "p")
    assert lab.documents("out.jsonl") == [*ROWS[:40], *ROWS[90:]]


def test_behind_a_gap_it_goes_on_with_what_lies_before_the_next_one(lab: Lab) -> None:
    """The log was switched off twice: what was logged in between is there, and no command may pass over it."""
    lab.write("in.jsonl", [])
    downstream(lab)
    for first, log in zip(range(0, 100, 20), ["records", "positions"] * 2 + ["records"], strict=True):
        lab.write("in.jsonl", ROWS[first : first + 20], mode="a")
        upstream(lab, delivery={"log": log})
        runs(lab, "a", *(["p"] if first == 0 else []))
    for first in (40, 80):
        result = lab.run()
        assert result.error is not None and result.error.code == "chain.log_gap"
        assert f"positions rewind p in --to {first} --force" in (result.error.fix or "")
        rewound(lab, "p", "in", RewindTarget("position", first), force=True)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == [*ROWS[:20], *ROWS[40:60], *ROWS[80:]]


def test_one_that_is_dropped_and_comes_back_in_time_goes_on_where_it_stood(lab: Lab, crashes: Crashes) -> None:
    upstream(lab)
    downstream(lab, delivery={"batch-size": 20})
    runs(lab, "a")
    crashes(lab, "after-done:2")
    drop(lab)
    runs(lab, "p")
    assert lab.documents("out.jsonl") == ROWS
    assert readers(lab) == {"p:in": 100}


def test_a_reader_is_rewound(lab: Lab) -> None:
    upstream(lab)
    downstream(lab)
    runs(lab, "a", "p")
    assert rewound(lab, "p", "in", RewindTarget("position", 90))["now"] == 90
    assert readers(lab) == {"p:in": 90}
    runs(lab, "p")
    assert lab.documents("out.jsonl") == [*ROWS, *ROWS[90:]]
    assert rewound(lab, "p", "in", RewindTarget("start"))["now"] == 0
    runs(lab, "p")
    assert len(lab.lines("out.jsonl")) == 210


def test_a_rewind_behind_what_is_gone_is_refused(lab: Lab) -> None:
    upstream(lab, delivery=SMALL)
    downstream(lab)
    runs(lab, "p", "a", "p", "a")
    with pytest.raises(FatalError, match="are gone"):
        rewound(lab, "p", "in", RewindTarget("position", 55))
    assert rewound(lab, "p", "in", RewindTarget("start"))["now"] == 90
    runs(lab, "p")
    assert lab.documents("out.jsonl") == [*ROWS, *ROWS[90:]]

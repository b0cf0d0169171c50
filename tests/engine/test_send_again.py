"""One destination is sent a range of the log again (``positions rewind --into``); all others stay unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine.test_late_destination import LATE, POINTS, events, offsets
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.rewind import RewindTarget, rewind
from conduit_dagster.engine.operate.send_again import Resent, send_again, send_all_again
from conduit_dagster.engine.operate.subject import subject
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.catch_ups import merged

pytestmark = pytest.mark.slow
START = RewindTarget("start")


def at(offset: int) -> RewindTarget:
    return RewindTarget("offset", offset)


def build(lab: Lab, *more_outputs: Any, processors: Any = (), **more: Any) -> None:
    delivery = {"log": "records", "batch-size": 15, "strategy": "exactly-once", **more.pop("delivery", {})}
    lab.pipeline(
        connectors=[source(), destination(), *more_outputs],
        processors=[DECODE, *processors],
        delivery=delivery,
        **{"dead-letter-queue": queue(), **more},
    )


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    """A pipeline of two destinations that has delivered 40 records."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(40)])
    build(lab, destination("second"))
    assert lab.run().error is None
    return lab


def operate(lab: Lab, work: Any) -> Any:
    one = subject(lab.catalogue().project, "p")
    with one.locked(lambda: lab._spark, "a test") as held:  # pyright: ignore
        return work(*held)


def again(lab: Lab, start: RewindTarget, end: RewindTarget | None = None, into: str = "second", **more: Any) -> Any:
    return operate(lab, lambda lock, database: send_again(lock, database, None, Resent(into, start, end), **more))


def refusal(lab: Lab, *arguments: Any, **more: Any) -> str:
    with pytest.raises(FatalError) as refused:
        again(lab, *arguments, **more)
    return str(refused.value.code)


def numbers(lab: Lab, name: str = "second") -> list[int]:
    return [row["i"] for row in lab.documents(f"{name}.jsonl")]


def test_it_gets_the_range_again_and_then_what_is_new(lab: Lab) -> None:
    facts = again(lab, at(10), at(13))
    assert (facts["first"], facts["upto"], facts["records"], facts["changed"]) == (10, 13, 3, True)
    lab.write("in.jsonl", [{"i": 40}], mode="a")
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), 10, 11, 12, 40]
    assert numbers(lab, "out") == list(range(41))
    assert offsets(lab) == {(name, "in"): 40 for name in ("dead_letters", "out", "second")}
    told = {"consumer": "second", "source": "in", "first": 10, "upto": 13}
    [event] = events(lab, "sent_again")
    assert {name: event[name] for name in told} == told
    # only once: later runs send it nothing again, and a second range may be requested
    assert lab.run().progress.read == 0
    again(lab, at(38))
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), 10, 11, 12, 40, 38, 39, 40]


def test_a_dry_run_and_an_empty_range_change_nothing(lab: Lab) -> None:
    assert again(lab, START, dry_run=True)["records"] == 40
    assert again(lab, at(20), at(20))["changed"] is False
    assert again(lab, at(40))["changed"] is False
    assert lab.run().progress.read == 0
    assert events(lab, "sent_again") == []


@pytest.mark.parametrize("passage", [1, 2])
@pytest.mark.parametrize("point", [point for point in POINTS if point != "after-register"])
def test_after_a_crash_it_has_every_record_once_more(lab: Lab, crashes: Crashes, point: str, passage: int) -> None:
    again(lab, at(5), at(35))
    lab.write("in.jsonl", [{"i": 40}], mode="a")
    crashes(lab, f"{point}:{passage}")
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), *range(5, 35), 40]
    assert numbers(lab, "out") == list(range(41))


def test_compaction_takes_nothing_that_it_is_still_sent(tmp_path: Path, spark: SparkSession, crashes: Crashes) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i, "pad": "x" * 200} for i in range(40)])
    small = {"batch-size": 5, "log-segment-size": "1KB", "log-retention": {"bytes": "1MB"}}
    build(lab, destination("second"), delivery=small)
    assert lab.run().error is None
    again(lab, at(3))
    # from here on entries handled by all may be removed at once
    build(lab, destination("second"), delivery={"batch-size": 5, "log-segment-size": "1KB"})
    crashes(lab, "after-done:2")
    lab.write("in.jsonl", [{"i": i, "pad": "x" * 200} for i in range(40, 60)], mode="a")
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), *range(3, 60)]
    assert numbers(lab, "out") == list(range(60))


def test_what_it_refused_before_is_struck_off_its_letters(tmp_path: Path, spark: SparkSession) -> None:
    """A record that it accepts now is not also sent by a replay; one that is refused again has one open letter."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(10)])
    script = Script(lab)
    script.says("second", refuse=[3, 4])
    build(lab, scripted("second"), delivery={"strategy": "at-least-once"})
    assert lab.run().error is None
    script.says("second", refuse=[4])
    again(lab, START)
    assert lab.run().error is None
    script.says("second")
    lab.replay()
    sent = script.values("second")
    assert sent.count(3) == 1 + 1, "refused, then taken"
    assert sent.count(4) == 1 + 1 + 1, "refused twice, then replayed"
    assert numbers(lab, "out") == list(range(10))


def test_a_letter_of_a_node_before_the_fan_out(lab: Lab) -> None:
    """Nacked again on the way to one destination: a replay sends it to each destination once."""
    bad = processor("bad", "error", "after.i == 41", message="bad")
    build(lab, destination("second"), processors=[bad])
    lab.write("in.jsonl", [{"i": i} for i in range(40, 43)], mode="a")
    assert lab.run().error is None
    again(lab, at(40))
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), 40, 42, 40, 42]
    build(lab, destination("second"))
    lab.replay()
    assert numbers(lab, "out") == [*range(40), 40, 42, 41]
    assert numbers(lab) == [*range(40), 40, 42, 40, 42, 41]


def test_the_file_is_fixed_before_it_is_sent_again(lab: Lab) -> None:
    """The destination gets the record from the log, the replay sends it to the others."""
    bad = processor("bad", "error", "after.i == 41", message="bad")
    build(lab, destination("second"), processors=[bad])
    lab.write("in.jsonl", [{"i": i} for i in range(40, 43)], mode="a")
    assert lab.run().error is None
    build(lab, destination("second"))
    again(lab, at(40))
    assert lab.run().error is None
    lab.replay()
    assert numbers(lab, "out") == [*range(40), 40, 42, 41]
    assert numbers(lab) == [*range(40), 40, 42, 40, 41, 42]


@pytest.mark.parametrize("into", ["second", "late"])
def test_a_rewind_of_the_source_ends_what_one_is_sent_by_itself(lab: Lab, into: str) -> None:
    """Records that come again for all are sent once, and a dead letter of them is replayed to all."""
    build(lab, destination("second"), LATE)
    assert lab.run().error is None
    if into == "second":
        again(lab, START, at(30))
        assert lab.run().error is None
    before = numbers(lab, into)
    operate(lab, lambda lock, database: rewind(lock, database, None, at(5)))
    bad = processor("bad", "error", "after.i == 7", message="bad")
    build(lab, destination("second"), LATE, processors=[bad])
    assert lab.run().error is None
    build(lab, destination("second"), LATE)
    lab.replay()
    assert numbers(lab, into) == [*before, 5, 6, *range(8, 40), 7]


def test_a_rewind_while_it_is_still_sent_a_range(lab: Lab) -> None:
    again(lab, at(2))
    operate(lab, lambda lock, database: rewind(lock, database, None, at(30)))
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), *range(2, 40)]
    assert numbers(lab, "out") == [*range(40), *range(30, 40)]


def test_refusals(lab: Lab, crashes: Crashes) -> None:
    assert refusal(lab, START, into="third") == "usage.unknown_destination"
    assert refusal(lab, at(41)) == "log.beyond_end"
    again(lab, START)
    assert refusal(lab, START) == "positions.catching_up"
    crashes(lab, "after-prepare")
    assert refusal(lab, START) == "positions.step_open"
    assert lab.run().error is None
    build(lab, destination("second"), destination("third"))
    assert refusal(lab, START, into="third") == "positions.new_destination"
    once = processor("once", "deduplicate", key="after.i", **{"window.records": "9"})
    build(lab, destination("second"), processors=[once])
    assert refusal(lab, START) == "positions.remembering"
    build(lab, destination("second"), delivery={"log": "positions"})
    assert refusal(lab, START) == "log.positions_only"


def test_it_needs_a_log(tmp_path: Path, spark: SparkSession) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": 1}])
    build(lab, destination("second"), delivery={"log": "positions"})
    assert lab.run().error is None
    assert refusal(lab, START) == "log.positions_only"


def test_a_file_without_the_destination_gives_it_up(lab: Lab) -> None:
    again(lab, START)
    build(lab)
    assert lab.run().error is None
    build(lab, destination("second"))
    assert lab.run().error is None
    assert numbers(lab) == list(range(40)), "it came back as a new one"


@pytest.mark.parametrize("fan_in", ["merge", "alternate"])
def test_ranges_of_two_sources(tmp_path: Path, spark: SparkSession, fan_in: str) -> None:
    lab = Lab(tmp_path, spark)
    for name in "ab":
        lab.write(f"{name}.jsonl", [{"i": f"{name}{i}"} for i in range(4)])
    lab.pipeline(
        connectors=[source(f"./{name}.jsonl", id=name) for name in "ab"] + [destination(), destination("second")],
        processors=[DECODE],
        delivery={"log": "records", "strategy": "exactly-once"},
        **{"dead-letter-queue": queue(), "fan-in": fan_in},
    )
    assert lab.run().error is None
    for name, first in (("a", 3), ("b", 2)):
        resent = Resent("second", at(first))
        operate(lab, lambda lock, database, name=name, resent=resent: send_again(lock, database, name, resent))
    assert lab.run().error is None
    rows = [row["i"] for row in lab.documents("second.jsonl")]
    assert sorted(rows[8:]) == ["a3", "b2", "b3"]
    assert len(lab.documents("out.jsonl")) == 8


def two_sources(lab: Lab, *names: str, log: str = "records") -> None:
    lab.pipeline(
        connectors=[source(f"./{name}.jsonl", id=name) for name in names] + [destination(), destination("second")],
        processors=[DECODE],
        delivery={"log": log, "strategy": "exactly-once"},
        **{"dead-letter-queue": queue()},
    )


@pytest.fixture
def pair(tmp_path: Path, spark: SparkSession) -> Lab:
    """A pipeline of two sources that has delivered three records of each."""
    lab = Lab(tmp_path, spark)
    for place, name in enumerate("ab"):
        lab.write(f"{name}.jsonl", [{"i": place * 10 + i} for i in range(3)])
    two_sources(lab, "a", "b")
    assert lab.run().error is None
    return lab


def of_b(lock: Any, database: Any) -> Any:
    return send_again(lock, database, "b", Resent("second", START))


def test_a_source_that_left_the_file_is_refused(pair: Lab) -> None:
    two_sources(pair, "a")
    with pytest.raises(FatalError) as refused:
        operate(pair, of_b)
    assert refused.value.code == "usage.unknown_source"


def test_a_source_that_leaves_the_file_later_is_sent_when_it_is_back(pair: Lab) -> None:
    assert operate(pair, of_b)["records"] == 3
    two_sources(pair, "a")
    assert pair.run().error is None
    assert sorted(numbers(pair)) == [0, 1, 2, 10, 11, 12]
    two_sources(pair, "a", "b")
    assert pair.run().error is None
    assert sorted(numbers(pair)) == [0, 1, 2, 10, 10, 11, 11, 12, 12]
    assert events(pair, "catch_up_dropped") == []


def test_it_is_sent_when_the_log_is_switched_on_again(pair: Lab) -> None:
    assert operate(pair, of_b)["records"] == 3
    two_sources(pair, "a", "b", log="positions")
    assert pair.run().error is None
    assert len(numbers(pair)) == 6
    two_sources(pair, "a", "b")
    assert pair.run().error is None
    assert sorted(numbers(pair)) == [0, 1, 2, 10, 10, 11, 11, 12, 12]


def test_several_are_registered_together_or_not_at_all(lab: Lab) -> None:
    wanted = [(None, Resent(name, START)) for name in ("out", "third")]
    with pytest.raises(FatalError):
        operate(lab, lambda lock, database: send_all_again(lock, database, wanted))
    assert lab.run().progress.read == 0
    assert numbers(lab, "out") == list(range(40))


def test_what_is_left_can_be_given_up(lab: Lab) -> None:
    again(lab, at(3))
    facts = again(lab, at(38), force=True)
    assert (facts["first"], facts["changed"]) == (38, True)
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), 38, 39]
    [dropped] = events(lab, "catch_up_dropped")
    assert (dropped["consumer"], dropped["first"], dropped["upto"]) == ("second", 3, 40)
    again(lab, START)
    assert again(lab, at(40), force=True)["changed"] is True
    assert lab.run().progress.read == 0
    assert again(lab, at(40), force=True)["changed"] is False


def test_a_lost_file_of_the_log_says_how_to_go_on_without_it(lab: Lab) -> None:
    """The command is for the one destination: a rewind of the source would leave out records of all."""
    again(lab, at(10))
    for file in (lab.root / ".conduit" / "log" / "p" / "in").rglob("*.parquet"):
        file.unlink()
    error = lab.run().error
    assert error is not None and error.code == "log.missing"
    assert "conduit-dagster positions rewind p in --into second --to-offset 15 --force" in (error.fix or "")
    again(lab, at(40), force=True)
    assert lab.run().error is None


def test_deduplicate_is_refused_while_something_is_left(lab: Lab) -> None:
    again(lab, at(38))
    once = processor("once", "deduplicate", key="after.i", **{"window.records": "9"})
    build(lab, destination("second"), processors=[once])
    result = lab.run()
    assert result.error is not None
    assert result.error.code == "positions.remembering"
    build(lab, destination("second"))
    assert lab.run().error is None
    assert numbers(lab) == [*range(40), 38, 39]


def test_a_letter_that_is_not_indexed_yet_is_struck_off(tmp_path: Path, spark: SparkSession, crashes: Crashes) -> None:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    bad = processor("bad", "error", "after.i == 1", message="bad")
    build(lab, {**destination("second"), "processors": [bad]}, delivery={"strategy": "at-most-once"})
    crashes(lab, "after-prepare")
    build(lab, destination("second"), delivery={"strategy": "at-most-once"})
    again(lab, START)
    assert lab.run().error is None
    # the killed delivery's place in the file is filled with line ends
    sent = [line for line in lab.lines("second.jsonl") if line]
    assert sorted(sent) == ['{"i":0}', '{"i":1}', '{"i":2}']
    with pytest.raises(FatalError) as none:
        lab.replay()
    assert none.value.code == "dead_letters.none"
    assert [line for line in lab.lines("second.jsonl") if line] == sent


def test_ranges_are_merged() -> None:
    assert merged([range(5, 9), range(3), range(3, 5), range(20, 20), range(12, 14), range(13, 15)]) == [
        (0, 9),
        (12, 15),
    ]

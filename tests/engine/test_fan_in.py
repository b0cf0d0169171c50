"""Fan-in ``join`` and ``alternate``, and the log of records (CASES D1-D3, D13-D16)."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from lab.postgres_server import PostgresServer
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source

from conduit_dagster.cli.main import main
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.overview import source_rows


def number(name: str, *processors: Any) -> dict[str, Any]:
    """A source of lines ``{"x": n}``."""
    found = source(f"./{name}.jsonl", processors=[DECODE, *processors])
    return {**found, "id": name}


def total(expression: str) -> dict[str, Any]:
    return processor("sum", "field.set", field=".Payload.After.sum", expression=expression)


def pick(field: str = "sum") -> dict[str, Any]:
    fields = ",".join(f".Payload.After.{name}" for name in ("s1", "s2") if name != field)
    return processor("pick", "field.exclude", fields=fields)


def xs(*numbers: int) -> list[dict[str, int]]:
    return [{"x": n} for n in numbers]


PLUS = processor("plus", "field.set", field=".Payload.After.x", expression="after.x + 1")
SUM = total("after.s1.x + after.s2.x")


def join(lab: Lab, *outputs: Any, **more: Any) -> None:
    more.setdefault("processors", [SUM, pick()])
    more.setdefault("dead-letter-queue", queue())
    connectors = more.pop("sources", [number("s1"), number("s2")])
    lab.pipeline(connectors=[*connectors, *(outputs or [destination()])], **{"fan-in": "join", **more})


def sums(lab: Lab, name: str = "out.jsonl") -> list[int]:
    return [row["sum"] for row in lab.documents(name)]


def test_d13_a_join_of_incremented_numbers_is_summed(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 3))
    lab.write("s2.jsonl", xs(2, 4))
    plus = [processor(f"plus{i}", "field.set", field=".Payload.After.x", expression="after.x + 1") for i in (1, 2)]
    join(lab, sources=[number("s1", plus[0]), number("s2", plus[1])])
    result = lab.run()
    assert result.error is None
    assert sums(lab) == [5, 9]
    assert lab.run().progress.read == 0


def test_d14_a_join_forks_into_even_and_odd(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 2))
    lab.write("s2.jsonl", xs(1, 3))
    even = destination("even", processors=[processor("e", "filter", "after.sum % 2 == 1")])
    odd = destination("odd", processors=[processor("o", "filter", "after.sum % 2 == 0")])
    join(lab, even, odd)
    assert lab.run().error is None
    assert (sums(lab, "even.jsonl"), sums(lab, "odd.jsonl")) == ([2], [5])


def test_d15_odd_values_go_to_the_error_queue(lab: Lab) -> None:
    lab.write("in.jsonl", xs(1, 2, 3, 4))
    odd = processor("odd", "error", "after.x % 2 == 1", message="odd")
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, odd], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert [row["x"] for row in lab.documents("out.jsonl")] == [2, 4]
    assert [after["x"] for _, _, after in lab.letters()] == [1, 3]


def test_d16_a_record_waits_for_its_partner_over_a_stop(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 2))
    lab.write("s2.jsonl", xs(10))
    join(lab)
    assert lab.run().error is None
    assert sums(lab) == [11]
    assert lab.run().error is None
    assert sums(lab) == [11]
    lab.write("s2.jsonl", xs(20), mode="a")
    assert lab.run().error is None
    assert sums(lab) == [11, 22]


def test_a_join_pairs_what_the_source_processors_let_through(lab: Lab) -> None:
    """Filtered records have no partner, and nacked ones are dead letters of their own."""
    lab.write("s1.jsonl", xs(*range(1, 11)))
    lab.write("s2.jsonl", xs(10, 20, 30, 40, 50))
    skip = processor("skip", "filter", "after.x % 2 == 0")
    bad = processor("bad", "error", "after.x == 3", message="three")
    join(lab, sources=[number("s1", skip, bad), number("s2")])
    result = lab.run()
    assert result.error is None
    assert sums(lab) == [11, 25, 37, 49]
    assert [after["x"] for _, _, after in lab.letters()] == [3]
    lab.write("s1.jsonl", xs(100, 101), mode="a")
    assert lab.run().error is None
    assert sums(lab) == [11, 25, 37, 49, 151]


def test_records_that_wait_for_a_join_pass_their_processors_once(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 2, 3))
    lab.write("s2.jsonl", xs(10))
    sources = [number("s1", PLUS), number("s2")]
    join(lab, sources=sources)
    assert lab.run().error is None
    lab.pipeline(connectors=[*sources, destination()], delivery={"log": "records"})
    error = lab.run().error
    assert error is not None
    assert (error.code, error.node) == ("log.not_read_up", "p:s1")
    lab.write("s2.jsonl", xs(20, 30), mode="a")
    join(lab, sources=sources)
    assert lab.run().error is None
    assert sums(lab) == [12, 23, 34]
    lab.write("s1.jsonl", xs(4), mode="a")
    lab.pipeline(connectors=[*sources, destination()], delivery={"log": "records"})
    assert lab.run().error is None
    assert lab.documents("out.jsonl")[3:] == xs(5)


def test_a_join_takes_no_record_that_did_not_pass_its_processors(lab: Lab, crashes: Crashes) -> None:
    lab.write("s1.jsonl", xs(1, 2))
    lab.write("s2.jsonl", xs(10, 20))
    sources = [number("s1", PLUS), number("s2")]
    merged = {"connectors": [*sources, destination()], "delivery": {"log": "records"}}
    lab.pipeline(**merged)
    crashes(lab, "after-log")
    join(lab, sources=sources)
    error = lab.run().error
    assert error is not None and error.code == "log.not_read_up"
    lab.pipeline(**merged)
    assert lab.run().error is None
    lab.write("s1.jsonl", xs(3), mode="a")
    lab.write("s2.jsonl", xs(30), mode="a")
    join(lab, sources=sources)
    assert lab.run().error is None
    assert sorted(row["x"] for row in lab.documents("out.jsonl")[:-1]) == [2, 3, 10, 20]
    assert lab.documents("out.jsonl")[-1] == {"sum": 34}


def test_a_nack_of_a_join_covers_all_its_inputs(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 2, 3))
    lab.write("s2.jsonl", xs(1, 1, 1))
    bad = processor("bad", "error", "after.sum == 3", message="three")
    join(lab, processors=[SUM, bad, pick()])
    assert lab.run().error is None
    assert sums(lab) == [2, 4]
    [(_, _, letter)] = lab.letters()
    assert (letter["s1"], letter["s2"]) == ({"x": 2}, {"x": 1})


def test_a_joined_record_is_sent_again_once_the_processor_that_nacked_it_has_left_the_file(lab: Lab) -> None:
    """Not so a record that was nacked before it was joined: its partners went on without it."""
    lab.write("s1.jsonl", [*xs(1), "no JSON", *xs(3)])
    lab.write("s2.jsonl", xs(10, 30))
    join(lab, processors=[SUM, pick(), processor("odd", "error", "after.sum == 33", message="no")])
    assert lab.run().error is None
    join(lab)
    facts = lab.replay()
    assert sums(lab) == [11, 33]
    assert [row["code"] for row in facts["failed_by"]] == ["dead_letters.before_join"]


def test_letters_of_a_join_that_is_none_any_more_say_what_to_put_back(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 3))
    lab.write("s2.jsonl", xs(10, 30))
    join(lab, processors=[SUM, pick(), processor("odd", "error", "after.sum == 33", message="no")])
    assert lab.run().error is None
    lab.pipeline(connectors=[number("s1"), number("s2"), destination()])
    with pytest.raises(FatalError, match="fan-in changed") as caught:
        lab.replay()
    assert caught.value.code == "dead_letters.not_kept"
    join(lab)
    assert lab.replay()["replayed"] == 1


def test_a_lost_file_of_a_member_says_how_to_go_on_without_it(
    lab: Lab, crashes: Crashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The join has an offset for each member: it can't be rewound to a single one."""
    lab.write("s1.jsonl", xs(1, 2))
    lab.write("s2.jsonl", xs(10, 20))
    join(lab)
    crashes(lab, "after-log")
    for file in (lab.root / ".conduit" / "log" / "p" / "s1").rglob("*.parquet"):
        file.unlink()
    error = lab.run().error
    assert error is not None and error.code == "log.missing"
    [_, command] = (error.fix or "").split("given up: ")
    assert command == """conduit-dagster positions rewind p s1 --to '{"s1": 2, "s2": OFFSET_OF_s2}' --force"""
    monkeypatch.chdir(lab.root)
    assert main(tuple(shlex.split(command.replace("OFFSET_OF_s2", "2"))[1:])) == 0
    for name, x in (("s1", 3), ("s2", 30)):
        lab.write(f"{name}.jsonl", xs(x), mode="a")
    assert lab.run().error is None
    assert sums(lab) == [33]


def test_a_join_is_cut_before_the_record_that_exceeds_the_threshold(lab: Lab) -> None:
    lab.write("s1.jsonl", xs(1, 2, 3, 4))
    lab.write("s2.jsonl", xs(0, 0, 0, 0))
    bad = processor("bad", "error", "after.sum == 3", message="three")
    join(lab, processors=[SUM, bad, pick()], **{"dead-letter-queue": queue(1, 0)})
    result = lab.run()
    assert result.error is not None
    assert "three" in result.error.message
    assert sums(lab) == [1, 2]
    join(lab)
    assert lab.run().error is None
    assert sums(lab) == [1, 2, 3, 4]


POINTS = (
    "before-log", "after-log-stage", "after-log", "after-plan", "after-stage", "after-prepare", "after-publish",
    "after-done",
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_d01_d02_a_join_that_crashes_is_delivered_once(lab: Lab, crashes: Crashes, point: str) -> None:
    lab.write("s1.jsonl", xs(1, 2, 3))
    lab.write("s2.jsonl", xs(10, 20, 30))
    join(lab)
    crashes(lab, point)
    lab.write("s1.jsonl", xs(4), mode="a")
    lab.write("s2.jsonl", xs(40), mode="a")
    assert lab.run().error is None
    assert sums(lab) == [11, 22, 33, 44]
    assert lab.run().progress.read == 0


@pytest.mark.parametrize("log", ["auto", "positions"])
def test_alternate_takes_one_source_per_step_in_turns(lab: Lab, log: str) -> None:
    for name in ("s1", "s2"):
        lab.write(f"{name}.jsonl", xs(*range(4)))
    lab.pipeline(
        connectors=[number("s1"), number("s2"), destination()],
        delivery={"batch-size": 2, "log": log},
        **{"fan-in": "alternate"},
    )
    result = lab.run()
    assert result.error is None
    assert [row["x"] for row in lab.documents("out.jsonl")] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert result.progress.steps == 4


@pytest.mark.parametrize("log", ["auto", "positions"])
@pytest.mark.parametrize("point", ["after-plan", "after-stage", "after-prepare"])
def test_d03_the_choice_of_a_source_is_pinned_across_retries(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    """The first attempt read from s2; if s1 fills up before the second one, s2 is read first again."""
    lab.write("s1.jsonl", [])
    lab.write("s2.jsonl", xs(20, 21))
    lab.pipeline(
        connectors=[number("s1"), number("s2"), destination()], delivery={"log": log}, **{"fan-in": "alternate"}
    )
    crashes(lab, point)
    lab.write("s1.jsonl", xs(10, 11), mode="a")
    assert lab.run().error is None
    assert [row["x"] for row in lab.documents("out.jsonl")] == [20, 21, 10, 11]


def test_the_logs_of_a_join_that_was_a_merge_are_compacted(lab: Lab) -> None:
    """A join moves no offsets of namespaces: those of the merge must not hold the log for good."""
    sources = [{**source(f"./{name}.jsonl"), "id": name} for name in ("s1", "s2")]
    delivery = {"log": "records", "batch-size": 10, "log-segment-size": "1KB"}

    def more() -> None:
        for name in ("s1", "s2"):
            lab.write(f"{name}.jsonl", xs(*range(20)), mode="a")
        assert lab.run().error is None

    lab.pipeline(connectors=[*sources, destination()], delivery=delivery, **{"dead-letter-queue": queue()})
    more()
    join(lab, sources=sources, delivery=delivery, processors=[])
    more()
    assert lab.run().error is None  # a run begins with a compaction
    with lab.store() as database, database.connect() as connection:
        segments = LogStore("p").segments(connection, "s1")
    assert [part.entries for part in segments[:-1]] == [1] * (len(segments) - 1)
    assert len(segments) > 3


def test_what_was_read_stays_counted_when_the_fan_in_changes(lab: Lab) -> None:
    """Not only since the last change: totals and metrics went back."""
    read = list[dict[str, tuple[int, int]]]()
    for first, fan_in in zip((0, 3, 6), ("merge", "join", "merge"), strict=True):
        for name in ("s1", "s2"):
            lab.write(f"{name}.jsonl", xs(first, first + 1, first + 2), mode="a")
        bad = processor("bad", "error", "after.s1.x == 4" if fan_in == "join" else "after.x == 1", message="no")
        lab.pipeline(
            connectors=[number("s1"), number("s2"), destination()],
            processors=[bad],
            **{"fan-in": fan_in, "delivery": {"log": "records"}, "dead-letter-queue": queue()},
        )
        assert lab.run().error is None
        with lab.store() as database:
            read.append({row["id"]: (row["records"], row["nacked"]) for row in source_rows(database, "p")})
    assert read == [{"s1": one, "s2": one} for one in ((3, 1), (6, 2), (9, 2))]


def test_a_join_of_sources_with_long_names(lab: Lab, postgres_server: PostgresServer) -> None:
    """PostgreSQL, unlike SQLite, refuses an id that is longer than its column."""
    (lab.root / "conduit.yaml").write_text(f"state: {{url: '{postgres_server.create_database()}'}}\n")
    names = [f"{name}-{'x' * 90}" for name in ("s1", "s2", "s3")]
    join(lab, sources=[number(name) for name in names], processors=[])
    for _ in range(2):
        for name in names:
            lab.write(f"{name}.jsonl", xs(7), mode="a")
        assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{key: {"x": 7} for key in names}] * 2

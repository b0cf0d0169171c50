"""A source means other data, or the same data again.

P1 to P13 are findings of an audit; the lettered ones came of checking a model of the protocol (``model/changes``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.edits.edited import build, numbers, rows_of, run
from engine.edits.numbered import install, numbered
from engine.edits.tables import MakeTable
from lab.chain_lab import rewound
from lab.support import DECODE, Crashes, Lab, destination, processor, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.rewind import RewindTarget

pytestmark = pytest.mark.slow


@pytest.fixture
def units(lab: Lab) -> Lab:
    """Three records each of a, b and c, read by a source whose positions are plain numbers."""
    install(lab)
    for data in "abc":
        lab.write(f"{data}.jsonl", [{"id": f"{data}{i}"} for i in range(3)])
    return lab


@pytest.mark.parametrize("log", ["positions", "records"])
def test_p4_a_generation_is_never_given_twice(units: Lab, make_table: MakeTable, log: str) -> None:
    """A, B, A, C: the hashes of C are not those of B, for which the table would take its records as delivered."""
    table = make_table("id text")
    for data in "abac":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    assert table.values() == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_p4_nor_is_one_of_a_source_that_was_removed_or_rewound(units: Lab, make_table: MakeTable, log: str) -> None:
    """A, B, rewound; the source leaves the file and comes back as A, then as C."""
    table, other = make_table("id text"), {**source("./other.jsonl"), "id": "other"}
    units.write("other.jsonl", [])
    for data in "ab":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    rewound(units, "p", "in", RewindTarget("start"))
    run(units)
    build(units, other, table.destination(), log=log)
    run(units)
    for data in "ac":
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    a, b, c = ([f"{data}{i}" for i in range(3)] for data in "abc")
    # a source that is read through its log is rewound in the log, which holds both
    again = [*a, *b] if log == "records" else b
    assert table.values() == [*a, *b, *again, *c]


def test_a_offsets_and_positions_never_share_a_hash(units: Lab, make_table: MakeTable) -> None:
    """If offsets of the log were named like positions of A, the table would have the latter."""
    table = make_table("id text")
    for data, log in (("b", "positions"), ("a", "records"), ("a", "positions")):
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    units.write("a.jsonl", [{"id": f"a{i}"} for i in range(3, 6)], mode="a")
    run(units)
    assert table.values() == ["b0", "b1", "b2", *(f"a{i}" for i in range(6))]


def test_b_another_unit_and_no_log_any_more_in_one_edit(units: Lab, make_table: MakeTable) -> None:
    """C is read from its beginning; A, once it is back, from where A was: not from its offset in the log."""
    table = make_table("id text")
    for data, log in (("b", "positions"), ("a", "records"), ("c", "positions")):
        build(units, numbered(data), table.destination(), log=log)
        run(units)
    assert table.values() == [f"{data}{i}" for data in "bac" for i in range(3)]
    units.write("a.jsonl", [{"id": f"a{i}"} for i in range(3, 8)], mode="a")
    build(units, numbered("a"), table.destination(), log="positions")
    run(units)
    assert table.values()[9:] == [f"a{i}" for i in range(3, 8)]


def test_b_another_unit_and_no_log_any_more_under_a_prepared_step(
    units: Lab, make_table: MakeTable, crashes: Crashes
) -> None:
    table = make_table("id text")
    build(units, numbered("a"), table.destination(), log="records")
    crashes(units, "after-prepare")
    build(units, numbered("b"), table.destination(), log="positions")
    run(units)
    assert table.values() == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("point", ["after-plan:2", "after-prepare:2", "after-publish:2"])
def test_p5_another_source_under_an_open_step_and_back(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    lab.write("a.jsonl", rows_of(20, "a"))
    lab.write("b.jsonl", rows_of(3, "b"))
    settings = {"log": log, "batch-size": 5}
    build(lab, source("./a.jsonl"), destination(), **settings)
    crashes(lab, point)
    for path in ("./b.jsonl", "./a.jsonl"):
        build(lab, source(path), destination(), **settings)
        run(lab)
    assert numbers(lab, field="a") == list(range(20))
    assert numbers(lab, field="b") == list(range(3))


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_p13_a_slip_that_is_mended(lab: Lab, log: str, meanwhile: bool) -> None:
    """The source continues where it was, whether or not the mistake named an existing file."""
    lab.write("in.jsonl", rows_of(5))
    if meanwhile:
        lab.write("im.jsonl", [{"i": 100}])
    build(lab, log=log)
    run(lab)
    build(lab, source("./im.jsonl"), destination(), log=log)
    assert lab.run().progress.read == (1 if meanwhile else 0)
    lab.write("in.jsonl", [{"i": 5}], mode="a")
    build(lab, log=log)
    assert run(lab) == 1
    assert numbers(lab) == [*range(5), *([100] if meanwhile else []), 5]


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("point", ["", "after-plan:2", "after-prepare:2", "after-publish:2"])
def test_p13_a_project_that_is_moved(
    tmp_path: Path, spark: SparkSession, crashes: Crashes, log: str, point: str
) -> None:
    """It continues where it was, with the step that was open."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    lab = Lab(here, spark)
    lab.write("in.jsonl", rows_of(10))
    build(lab, log=log, **{"batch-size": 5})
    if point:
        crashes(lab, point)
    else:
        run(lab)
    lab.root = here.rename(there)
    lab.write("in.jsonl", [{"i": 10}], mode="a")
    run(lab)
    assert numbers(lab) == list(range(11))
    assert run(lab) == 0


def test_a_log_that_is_switched_on_again_acks_no_position_of_earlier_data(units: Lab) -> None:
    """A is logged up to 9; B, read without a log up to 3, is logged up to 7: a step that ends at 5 must not ack 9."""
    units.write("a.jsonl", [{"id": f"a{i}"} for i in range(9)])
    for data, log in (("a", "records"), ("a", "positions"), ("b", "positions")):
        build(units, numbered(data), destination(), log=log)
        run(units)
    units.write("b.jsonl", [{"id": f"b{i}"} for i in range(3, 7)], mode="a")
    refusing = processor("bad", "error", "after.id == 'b5'", message="no")
    units.pipeline(
        connectors=[numbered("b"), destination()],
        processors=[DECODE, refusing],
        delivery={"strategy": "exactly-once", "log": "records"},
    )
    assert units.run().error is not None
    assert [row["id"] for row in units.documents("out.jsonl")[-2:]] == ["b3", "b4"]
    assert max(map(int, units.lines("b.acks"))) <= 5

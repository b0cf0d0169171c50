"""Offsets of a log that are read a second time have another generation, whatever was edited in between."""

from __future__ import annotations

import pytest
from engine.edits.edited import build, run
from engine.edits.numbered import install, numbered
from engine.edits.tables import MakeTable
from lab.chain_lab import rewound
from lab.support import Lab

from conduit_dagster.engine.operate.rewind import RewindTarget

pytestmark = pytest.mark.slow
LOGGED = {"log": "records", "batch-size": 3}


@pytest.fixture
def units(lab: Lab) -> Lab:
    """Three records each of a and b, read by a source whose positions are plain numbers."""
    install(lab)
    for data in "ab":
        lab.write(f"{data}.jsonl", [{"id": f"{data}{i}"} for i in range(3)])
    return lab


def test_a_rewound_log_whose_source_is_set_back_to_earlier_data(units: Lab, make_table: MakeTable) -> None:
    """A, B, rewound, A: the table has the log again, not under the names that it has had since A."""
    table = make_table("id text")
    for data in "ab":
        build(units, numbered(data), table.destination(), **LOGGED)
        run(units)
    assert rewound(units, "p", "in", RewindTarget("start"))["changed"]
    build(units, numbered("a"), table.destination(), **LOGGED)
    run(units)
    both = ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert table.values() == both + both


def test_a_rewound_join_that_is_none_any_more(units: Lab, make_table: MakeTable) -> None:
    """Each source's log is sent again, though its records were delivered before the sources were joined."""
    table = make_table("id text")

    def edit(fan_in: str) -> None:
        sources = [{**numbered(data), "id": data} for data in "ab"]
        units.pipeline(
            connectors=[*sources, table.destination()],
            **{"fan-in": fan_in, "delivery": {"strategy": "exactly-once", "log": "records"}},
        )

    edit("merge")
    run(units)
    edit("join")
    run(units)
    assert rewound(units, "p", "a+b", RewindTarget("start"))["now"] == {"a": 0, "b": 0}
    edit("merge")
    run(units)
    assert sorted(table.values()) == sorted(["a0", "a1", "a2", "b0", "b1", "b2"] * 2)

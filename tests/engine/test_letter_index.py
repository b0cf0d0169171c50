"""A step's dead letters are indexed after the step is prepared, some thousand in each transaction."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa
from lab.kills import crashing
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source

from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, pages
from conduit_dagster.state.tables import dead_letter_parts

pytestmark = pytest.mark.slow
BAD = 9_000
"""More than two groups of rows in the archive."""


def rows(lab: Lab) -> list[sa.RowMapping]:
    with lab.store() as store:
        return [row for page in pages(store, "p", DeadLetterQuery(STATES)) for row in page]


@pytest.fixture
def failing(lab: Lab) -> Lab:
    """A pipeline whose only step nacks nearly everything."""
    lab.write("in.jsonl", [{"i": i} for i in range(BAD + 5)])
    refuse = processor("refuse", "error", f"after.i < {BAD}", message="bad {{ .Payload.After.i }}")
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, refuse], **{"dead-letter-queue": queue()})
    return lab


@pytest.mark.parametrize("passage", [1, 2])
def test_indexing_goes_on_where_a_killed_owner_left_it(failing: Lab, crashes: Crashes, passage: int) -> None:
    """Each letter has one row in record order, and reaches the queue once."""
    crashes(failing, f"mid-index:{passage}")
    assert 0 < len(rows(failing)) < BAD
    assert failing.documents("out.jsonl") == [] == failing.documents("dead.jsonl")
    assert failing.run().error is None
    found = rows(failing)
    assert [row["number"] for row in found] == list(range(BAD))
    assert [row["offset"] for row in found] == list(range(BAD))
    assert [row["i"] for row in failing.documents("out.jsonl")] == list(range(BAD, BAD + 5))
    assert Counter(reason for _, reason, _ in failing.letters()) == {f"bad {i}": 1 for i in range(BAD)}
    with failing.store() as store, store.connect() as connection:
        assert connection.execute(sa.select(dead_letter_parts.c.indexed)).scalars().all() == [BAD]


@pytest.mark.parametrize("passage", [1, 2])
def test_what_fails_again_in_a_replay_is_counted_once(failing: Lab, passage: int) -> None:
    assert failing.run().error is None
    with crashing("mid-index", passage):
        failing.replay()
    assert failing.run().error is None
    found = rows(failing)
    assert {(row["state"], row["attempt"]) for row in found} == {("open", 2)}
    assert len(found) == BAD == len(failing.documents("dead.jsonl"))

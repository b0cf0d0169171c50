"""``positions rewind`` beside open dead letters, which a replay would deliver as well."""

from __future__ import annotations

import pytest
from lab.operating import RECORDS, build, result
from lab.support import DECODE, Lab, destination, processor


def test_open_dead_letters_of_what_is_read_again_are_told(run, lab: Lab) -> None:
    """A replay of them delivers a second time what the rewind delivers."""
    bad = processor("bad", "error", "after.i == 1", message="bad")
    build(lab, 3, destination(), processors=[DECODE, bad])
    assert lab.run().error is None
    for option in ("--dry-run", "--json"):
        told = run("positions", "rewind", "p", "--to-start", option).out
        assert "1 open dead letter stays: a replay would deliver a second time what is read again" in told
    assert "dead letter" not in run("positions", "rewind", "p", "--to-start").out


@pytest.mark.parametrize(("offset", "letters"), [(0, 1), (1, 1), (2, 0)])
def test_only_letters_of_logged_records_that_come_again_are_told(run, lab: Lab, offset: int, letters: int) -> None:
    bad = processor("bad", "error", "after.i == 1", message="bad")
    build(lab, 3, destination(), processors=[DECODE, bad], delivery=RECORDS)
    assert lab.run().error is None
    facts = result(run("positions", "rewind", "p", "--to-offset", str(offset), "--json"))
    assert facts["open_letters"] == letters

"""The archive of dead letters stores any record, and returns it unchanged."""

from __future__ import annotations

import gc
import math
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.failing_store import failing_store

from conduit_dagster.engine.dead_letters.archive import Archive, ArchivedLetter, ArchiveFile, keep, kept
from conduit_dagster.engine.dead_letters.letter_layout import NackOrigin, dead_letter
from conduit_dagster.engine.dead_letters.search import DeadLetterSearch
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.state.database import open_database
from conduit_dagster.state.dead_letters import DeadLetterQuery, insert_rows
from conduit_dagster.state.steps import DeadLetter

HALF = "a\ud800b"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
METADATA = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)
DATA = st.none() | st.binary(max_size=20) | st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


@given(
    after=DATA, key=DATA, before=DATA, metadata=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)
)
def test_what_is_kept_comes_back(after: Any, key: Any, before: Any, metadata: dict[str, str]) -> None:
    record = Record("7", metadata, after, key, before, "update")
    assert kept(keep(record)) == record


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (Record(7, {}, {"x": 2**70, "y": -(2**70)}), Record("7", {}, {"x": 2**70, "y": -(2**70)})),
        (Record("1", {}, {"x": HALF}), Record("1", {}, {"x": HALF})),
        (Record("1", {}, {"x": b"\xff"}), Record("1", {}, {"x": b"\xff"})),
        # where only text is possible, it is escaped
        (Record("1", {}, {HALF: 1}), Record("1", {}, {"a\\ud800b": 1})),
        (Record(HALF, {"file": HALF}, None), Record("a\\ud800b", {"file": "a\\ud800b"}, None)),
        (Record("1", {}, {1: "x"}), Record("1", {}, {"1": "x"})),
        (Record("1", {}, {"x": [2 * 10**4300]}), Record("1", {}, {"x": [hex(2 * 10**4300)]})),
    ],
)
def test_what_message_pack_can_not_hold(record: Record, wanted: Record) -> None:
    assert kept(keep(record)) == wanted


def test_an_integer_that_nothing_can_write_is_text_in_the_queue() -> None:
    origin = NackOrigin("p", "in", 0, "hash")
    letter: Any = dead_letter(origin, "n", Nack("c", "m"), Record("1", {}, {"x": [-2 * 10**4300]}), 0)
    assert letter.after["payload"]["after"] == {"x": [hex(-2 * 10**4300)]}


def test_not_a_number_is_kept() -> None:
    after: Any = kept(keep(Record("1", {}, {"x": math.nan}))).after
    assert math.isnan(after["x"])


@contextmanager
def every_file_closed(folder: Path) -> Iterator[None]:
    """Fail where a file of this folder is left open; what other tests left may be collected meanwhile."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in told if str(folder) in str(one.message)] == []


def test_rows_are_found_by_their_lines(tmp_path: Path) -> None:
    """Across the ends of row groups, which have 4,096 letters."""
    with every_file_closed(tmp_path):
        file = ArchiveFile(str(tmp_path / "a"), 3, 0)
        for i in range(10_000):
            file.add(ArchivedLetter("in", i, str(i), "", "n", "c", "m", "", -1, -1, b"f%d" % i, b"o%d" % i))
        part = file.finish()
        assert part is not None and part.letters == 10_000
        archive, lines = Archive(str(tmp_path / "a")), [0, 1, 4095, 4096, 8191, 8192, 9999]
        archive.verify(part)
        assert [one.original for one in archive.letters(part.name, lines)] == [b"o%d" % line for line in lines]
        assert [failed for failed, _ in archive.records(part.name, lines, False)] == [b"f%d" % line for line in lines]
        assert [one.ordinal for one in archive.letters(part.name, [9000, 5, 4])] == [9000, 5, 4]
        assert [one.ordinal for group in archive.index(part.name) for one in group] == list(range(10_000))
        with pytest.raises(FatalError) as error:
            list(archive.letters(part.name, [10_000]))
        assert error.value.code == "dead_letters.damaged"


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_search_has_a_few_letters_in_memory(tmp_path: Path, newest_first: bool) -> None:
    """It had all of a page, 20,000: with records of a megabyte no machine could export or search them."""
    megabyte, many = b"m" * (1 << 20), 40
    file = ArchiveFile(str(tmp_path / "a"), 1, 0)
    for i in range(many):
        record = keep(Record(str(i), {}, megabyte))
        file.add(ArchivedLetter("in", i, str(i), "", "n", "c", "m", "", -1, -1, record, record))
    part = file.finish()
    assert part is not None
    database = open_database(f"sqlite:///{tmp_path / 'state.db'}")
    rows = [DeadLetter("in", 1, str(i), i, "n", "c", "m", part=part.name, line=i) for i in range(many)]
    with database.begin() as connection:
        insert_rows(connection, ("p", 1, 0), 0, rows)
    search = DeadLetterSearch(database, Archive(str(tmp_path / "a")), "p")
    wanted = DeadLetterQuery()
    tracemalloc.start()
    found = search.search(wanted, "", newest_first=True) if newest_first else search.all(wanted)
    numbers = [int(str((one.failed() or Record("", {}, None)).position)) for one in found]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    database.dispose()
    assert numbers == sorted(range(many), reverse=newest_first)
    assert peak < 30 * len(megabyte)


def test_an_archive_that_may_not_be_read_is_not_damaged() -> None:
    """Its letters would be given up."""
    with failing_store(PermissionError("the signature does not match")) as url, pytest.raises(TransientError) as error:
        list(Archive(url).letters("part.parquet", [0]))
    assert (error.value.code, "signature" in error.value.message) == ("file.no_permission", True)

"""Conformance suite of sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import msgspec
import pytest

from conduit_dagster.record import OPERATIONS, READ_AT, SOURCE_CONNECTOR_ID, Mode, Record, mode_of
from conduit_dagster.sdk import Block, Keys, Limit, Position, ReadOptions, ResumeState, Source, Split

EVERYTHING = Limit(10**9, 10**12)
_MOST_BLOCKS: Final = 10_000
_MOST_STEPS: Final = 1_000
"""Blocks of a split, and steps to the end of the data, beyond which there is no end: a suite's source is small."""
Make = Callable[[], Source]


def blocks_of(
    make: Make, start: Position, end: Position, n: int = 1, options: ReadOptions | None = None
) -> list[Block]:
    """Return the blocks of a range that one instance cuts into about ``n`` splits, and another one reads, as a task."""
    source, reader = make(), make()
    found: list[Block] = []
    for split in source.split(_travelled(start), _travelled(end), n):
        found += _read(reader, split, options or ReadOptions(block_records=7))
    return found


def _steps(source: Source, start: Position, horizon: Any) -> Iterator[Position]:
    """Yield the ends of steps of any size from ``start`` on, until there is nothing new."""
    position, before = start, [start]
    while (further := source.latest(_travelled(position), EVERYTHING, horizon)) != position:
        assert further not in before, f"latest() gave {further} again, after {position}: positions go forward"
        assert len(before) < _MOST_STEPS, "latest() finds something new without end: it ends at the horizon"
        yield further
        before.append(further)
        position = further


def _read(reader: Source, split: Split, options: ReadOptions) -> Iterator[Block]:
    """Yield the blocks of a split as a task reads it."""
    for count, block in enumerate(reader.read(_sent(split), options)):
        assert count < _MOST_BLOCKS, "read() gives blocks without end: it ends where its split ends"
        yield block if isinstance(block, Block) else Block.of(block)


def _sent(split: Split) -> Split:
    """Return a split as it comes from the state store."""
    return msgspec.json.decode(msgspec.json.encode(split), type=Split)


def read_range(make: Make, start: Position, end: Position, n: int = 1) -> list[Record]:
    """Return the records of a range."""
    return [record for block in blocks_of(make, start, end, n) for record in block.records]


class SourceConformance:
    """Derive ``class TestMine(SourceConformance)`` with a fixture ``make``, which returns a function.

    The function creates the source, which must have at least twenty records, always the same ones. One that is not
    ``replayable`` gives them to each instance, since none is acked before the last test.
    """

    keeps_limit: ClassVar[bool] = True
    """False if a step may exceed its record limit, for example to keep a transaction in one step."""

    @pytest.fixture
    def make(self) -> Make:
        """Create the source as another process would: instances may share nothing but the data they read."""
        pytest.fail("derive, and give a fixture make")

    @pytest.fixture
    def horizon(self, make: Make) -> Any:
        """Return the end of its data, the same for a whole test: a server's log grows by itself."""
        return make().horizon()

    @pytest.fixture
    def end(self, make: Make, horizon: Any) -> Position:
        """Return the position after all its records."""
        source = make()
        *_, position = [source.initial(), *_steps(source, source.initial(), horizon)]
        return position

    @pytest.fixture
    def records(self, make: Make, end: Position) -> list[Record]:
        """Return all its records."""
        found = read_range(make, make().initial(), end)
        assert len(found) >= 20, "give the source twenty records or more to read"
        return found

    def test_positions_are_json(self, make: Make, end: Position) -> None:
        """Positions survive the round trip through the state store."""
        for position in (make().initial(), end):
            assert _travelled(position) == position
        assert json.dumps(make().unit), "which data this is goes into the state store as well"
        assert make().unit == make().unit, "another unit is other data: each run would read all of it again"

    def test_a_run_that_drains_it_has_an_end(self, horizon: Any) -> None:
        """Without a horizon, ``latest`` can't tell such a run from a continuous one."""
        assert horizon is not None, "horizon() gave None"

    def test_there_is_nothing_new_at_the_end(self, make: Make, end: Position, horizon: Any) -> None:
        """At the end ``latest`` returns the position unchanged; otherwise every poll would cause an empty step."""
        assert make().latest(_travelled(end), EVERYTHING, horizon) == end
        assert read_range(make, end, end) == []

    @pytest.mark.parametrize("n", [2, 3, 16])
    def test_however_it_is_cut(self, make: Make, end: Position, records: list[Record], n: int) -> None:
        """Any number of splits gives the same records in the same order; of one alone nothing is assumed."""
        source = make()
        if not source.replayable:
            pytest.skip("one task reads it")
        assert not any(split.assumed for split in source.split(source.initial(), end, 1))
        assert read_range(make, source.initial(), end, n) == records

    def test_it_can_be_read_twice(self, make: Make, end: Position, horizon: Any, records: list[Record]) -> None:
        """Another process reads the same range again, as after a failed step."""
        source = make()
        if not source.replayable:
            pytest.skip("it says that it can't")
        start = source.initial()
        assert read_range(make, start, end) == records
        half = _travelled(source.latest(start, Limit(len(records) // 2, 10**12), horizon))
        for first, last in ((start, end), (start, half), (half, end)):
            make().verify(first, last)
        assert not source.gives_up(start, half), "it gives up a range that it has just planned"

    @pytest.mark.parametrize("most", [1, 3, 8])
    def test_steps_add_up(self, make: Make, end: Position, horizon: Any, records: list[Record], most: int) -> None:
        """Successive limited ranges, each read by another process, give every record exactly once."""
        found: list[Record] = []
        position = make().initial()
        for _ in range(len(records) + 1):
            source = make()
            further = source.latest(position, Limit(most, 10**12), horizon)
            if further == position:
                break
            blocks = blocks_of(make, position, further)
            step = [record for block in blocks for record in block.records]
            if not source.replayable and step:
                # it is read to the end of its data, whatever the step's end
                further = blocks[-1].boundary(len(blocks[-1].records) - 1)
            assert len(step) <= most or not (self.keeps_limit and source.replayable), "more than the limit"
            found += step
            position = _travelled(further)
        assert found == records
        assert make().place(position) == make().place(end)

    def test_it_goes_on_at_any_record(self, make: Make, end: Position, records: list[Record]) -> None:
        """A source resumes at any record: a nack that exceeds the window cuts a step right there."""
        source, place = make(), 0
        start = source.initial()
        for block in blocks_of(make, start, end):
            for i in range(len(block.records)):
                place += 1
                if place % 5 == 0:
                    cut = source.within(start, end, _travelled(block.boundary(i)))
                    assert read_range(make, cut, end) == records[place:]
                    assert not source.replayable or read_range(make, start, cut) == records[:place]

    def test_splits_know_their_place(self, make: Make, end: Position, horizon: Any, records: list[Record]) -> None:
        """Each split has the correct number of the range's records before it, and of its own, if set."""
        source = make()
        start, n = source.initial(), 4 if source.replayable else 1
        later = _travelled(source.latest(start, Limit(len(records) // 2, 10**12), horizon))
        for first in (start, later) if source.replayable else (start,):
            place = 0
            for split in source.split(first, end, n):
                count = sum(len(block.records) for block in _read(make(), split, ReadOptions()))
                assert split.ordinal == place, "ordinals count from the range's start"
                assert split.records in (None, count)
                place += count
            assert first != start or place == len(records)

    def test_a_step_may_end_where_a_split_begins(self, make: Make, end: Position, horizon: Any) -> None:
        """As after a nack of its first record: the next step has the rest."""
        source = make()
        if not source.replayable:
            pytest.skip("one task reads it")
        start = source.initial()
        for first in (start, _travelled(source.latest(start, Limit(10, 10**12), horizon))):
            every = read_range(make, first, end)
            splits = make().split(first, end, 4)
            for split in splits:
                cut = _travelled(make().within(first, end, _travelled(split.start)))
                rest = read_range(make, cut, end)
                assert rest == every[split.ordinal :], "a split's start is the boundary before its first record"

    def test_records_are_whole(self, make: Make, records: list[Record]) -> None:
        """Each record has a unique position, and consists of storable values."""
        labels = {READ_AT, SOURCE_CONNECTOR_ID} if make().sets_metadata else set[str]()
        assert len({str(record.position) for record in records}) == len(records)
        for record in records:
            assert record.operation in OPERATIONS
            assert labels <= record.metadata.keys(), "sets_metadata: it adds self.context.labels itself"
            assert all(isinstance(k, str) and isinstance(v, str) for k, v in record.metadata.items())
            for part in (record.after, record.before, record.key):
                assert isinstance(part, bytes) or _travelled(part) == part

    @pytest.mark.parametrize("payloads", [False, True])
    @pytest.mark.parametrize("keys", Keys)
    def test_what_it_leaves_out_it_can_fill_in(
        self, make: Make, end: Position, records: list[Record], keys: Keys, payloads: bool
    ) -> None:
        """Keys and positions left out by ``read`` can be filled in for single records; nothing else may be left out."""
        place, options = 0, ReadOptions(keys, block_records=7, payloads=payloads)
        for block in blocks_of(make, make().initial(), end, options=options):
            for i, record in enumerate(block.records):
                if keys >= Keys.POSITIONS:
                    assert str(record.position) == str(records[place].position)
                if block.complete is not None:
                    block.complete(i, record)
                whole = records[place]
                assert (str(record.position), record.key) == (str(whole.position), whole.key)
                assert (record.after, record.before, record.operation) == (whole.after, whole.before, whole.operation)
                place += 1
        assert place == len(records)

    def test_resuming_changes_no_record(self, make: Make, end: Position, horizon: Any, records: list[Record]) -> None:
        """Records depend on positions only, not on the state passed at the start of a run."""
        if not make().replayable:
            pytest.skip("it is read to the end of its data")
        half = make().latest(make().initial(), Limit(len(records) // 2, 10**12), horizon)
        modes: dict[str, Mode] = {record.collection: mode_of(record) for record in records}
        for position, last, collections in ((make().initial(), None, {}), (half, records[0], modes)):
            source = make()
            source.resume(ResumeState(_travelled(position), last, collections))
            found = read_range(make, source.initial(), _travelled(position))
            for further in _steps(source, position, horizon):
                found += read_range(make, position, further)
                position = further
            assert found == records
            assert make().place(position) == make().place(end)

    def test_it_may_be_used_again_after_it_was_closed(self, make: Make, end: Position, horizon: Any) -> None:
        """A later run in the same process may have the same object."""
        source = make()
        for _ in range(2):
            assert source.latest(_travelled(end), EVERYTHING, horizon) == end
            source.close()

    def test_acks_may_be_repeated(self, make: Make, end: Position, records: list[Record]) -> None:
        """Acks may be repeated, as after a crash, and may go back."""
        del records
        source = make()
        for position in (end, end, source.initial()):
            source.ack(position, 1)
        if (lag := source.lag(end)) is not None:
            assert lag == 0


def _travelled(value: Any) -> Any:
    return json.loads(json.dumps(value))

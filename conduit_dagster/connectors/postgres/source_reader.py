"""Reading of a split, task side: rows of a table under the driver's snapshot, or a range of the slot's stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import psycopg

from conduit_dagster.connectors.postgres.changes import Catalog, Changes, ReadAs, StreamRange
from conduit_dagster.connectors.postgres.connection import Connection, connect, value_of
from conduit_dagster.connectors.postgres.copied_rows import RowRecords, TablePart, copy_lines, see_as
from conduit_dagster.connectors.postgres.pgoutput import Relation, ReplicationStream
from conduit_dagster.connectors.postgres.row_values import SET_SESSION
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors, is_unreadable
from conduit_dagster.connectors.postgres.source_position import (
    PostgresPosition,
    Region,
    SeenChanges,
    StreamPoint,
    format_lsn,
    parse_position,
)
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import OWN_TABLES, shape_of
from conduit_dagster.connectors.postgres.stream_catalog import StreamCatalog
from conduit_dagster.connectors.postgres.wal_history import open_stream
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Record
from conduit_dagster.sdk import Block, Keys, ReadOptions, Split

READER = "reader"
"""Suffix of ``application_name`` on connections that read the slot."""
_PATIENCE = 30.0
"""Seconds to wait for a slot that another session reads."""
_OURS = 3.0
"""Seconds after which another reader of this source is terminated: its task has died, or belongs to a frozen owner."""
_PAUSE = 0.05
_END_READER = """
    SELECT pg_terminate_backend(a.pid) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
    WHERE s.slot_name = %s AND a.application_name = %s
"""
_IS_LOST = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s"


class CopyDetail(msgspec.Struct):
    """Split detail of a part of a table."""

    part: TablePart
    snapshot: str
    """Id of the exported snapshot, for ``SET TRANSACTION SNAPSHOT``."""
    name: str
    """Name of the snapshot in positions."""


class StreamDetail(msgspec.Struct):
    """Split detail of a range of the stream."""

    end: StreamPoint
    confirmed: int
    """LSN before which the server may discard commits: all of them are delivered, and the position is durable."""


def as_json(detail: CopyDetail | StreamDetail) -> dict[str, Any]:
    """Return a split detail as a JSON object."""
    return msgspec.json.decode(msgspec.json.encode(detail))


def open_session(settings: PostgresSourceSettings, errors: SourceErrors, name: str) -> Connection:
    """Connect, with session settings for the text format decoded here. Raises a ``ConduitError``."""
    connection = connect(settings, errors, name)
    connection.execute(SET_SESSION)
    return connection


class SplitReader:
    """Reader of one split, in a task."""

    def __init__(
        self, settings: PostgresSourceSettings, errors: SourceErrors, application: str, labels: Mapping[str, str]
    ) -> None:
        """``labels``: metadata of every record."""
        self._settings = settings
        self._errors = errors
        self._application = application
        self._labels = labels

    def blocks(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the split's records. Raises a ``ConduitError``."""
        position = parse_position(split.start)
        try:
            if "part" in split.detail:
                yield from self._rows(position, msgspec.convert(split.detail, CopyDetail), options)
            else:
                yield from self._changes(position, msgspec.convert(split.detail, StreamDetail), options)
        except psycopg.Error as error:
            # "from None": a traceback would show libpq's unredacted text
            raise self._errors.verdict(error) from None

    def _session(self) -> Connection:
        return open_session(self._settings, self._errors, f"{self._application}:task")

    def _catalog(self) -> StreamCatalog:
        return StreamCatalog(self._session, self._errors)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _rows(self, begin: PostgresPosition, detail: CopyDetail, options: ReadOptions) -> Iterator[Block]:
        part = detail.part
        with closing(self._session()) as connection, closing(self._catalog()) as catalog:
            self._see(connection, detail.snapshot)
            decoders = [catalog.decoder(oid) for _, oid in part.columns]
            rows = RowRecords(part, decoders, ReadAs(self._labels, options.keys >= Keys.POSITIONS))
            try:
                for lines in _batches(copy_lines(connection, part), options):
                    yield _block_of_rows(rows, lines, begin, detail)
            except psycopg.Error as error:
                if is_unreadable(error):
                    raise self._errors.unreadable(error, str(part.table)) from None
                raise

    def _see(self, connection: Connection, snapshot: str) -> None:
        try:
            see_as(connection, snapshot)
        except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
            raise self._errors.snapshot_gone() from None

    # -- changes ------------------------------------------------------------------------------------------------

    def _changes(self, begin: PostgresPosition, detail: StreamDetail, options: ReadOptions) -> Iterator[Block]:
        start, end = begin.point, detail.end
        with closing(self._catalog()) as catalog, self._stream(start, end) as stream:
            seen = SeenChanges(begin, catalog.not_behind)

            def describe(relation: Relation) -> None:
                self._require_shape(relation, begin.shapes)
                catalog.describe(relation)

            def is_read(table: str) -> bool:
                return self._is_read(table, begin, catalog)

            known = Catalog(is_read, catalog.decoder, catalog.keys, catalog.is_sent_in_part, describe)
            read_as = ReadAs(self._labels, options.keys >= Keys.POSITIONS)
            changes = Changes(known, seen, StreamRange(start, end), read_as)
            messages = self._sent(stream.messages(end.lsn + (1 if end.changes else 0), detail.confirmed))
            for batch in _batches(messages, options):
                changes.feed(batch)
                yield from _block_of_changes(changes, begin)
                if changes.is_over:
                    break

    def _sent(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from messages
        except psycopg.Error as error:
            if is_unreadable(error):
                raise self._errors.unreadable_change(error) from None
            raise

    def _require_shape(self, relation: Relation, shapes: Mapping[str, str]) -> None:
        """Raise ``FatalError`` if a table's columns differ from those of earlier changes, for ``onSchemaChange: stop``.

        ``shapes``: digests by ``schema.table``.
        """
        columns = [f"{name} {oid}" for name, oid in zip(relation.names, relation.types, strict=True)]
        known = shapes.get(relation.name)
        if known is not None and known != shape_of(columns):
            raise self._errors.schema_changed(relation.name, relation.names)

    def _is_read(self, table: str, begin: PostgresPosition, catalog: StreamCatalog) -> bool:
        names = self._settings.named_tables
        if names is not None:
            return table in map(str, names)
        name = TableName.parse(table)
        if name.schema != self._settings.db_schema or name.name in OWN_TABLES:
            return False
        # the next run copies a table that joined the publication during this one: its rows would come twice
        is_copied = self._settings.snapshot_mode == "never" or begin.everything or table in begin.copied
        return is_copied or not catalog.has_table(name)

    @contextmanager
    def _stream(self, start: StreamPoint, end: StreamPoint) -> Generator[ReplicationStream]:
        name = f"{self._application}:{READER}"
        begun = time.monotonic()
        while True:
            stream = open_stream(self._settings, self._errors, name)
            try:
                self._require_wal(stream, end.lsn)
                stream.start(self._settings.slot, self._settings.publication, start.lsn)
                break
            except psycopg.errors.ObjectInUse:
                stream.close()
                if time.monotonic() - begun > _PATIENCE:
                    raise
                self._take_over(name, time.monotonic() - begun)
            except psycopg.errors.ObjectNotInPrerequisiteState:
                stream.close()
                self._require_kept()
                raise
            except BaseException:
                stream.close()
                raise
        with closing(stream):
            yield stream

    def _require_kept(self) -> None:
        """Raise ``FatalError`` if the server has given up the slot, since the range was planned."""
        with closing(self._session()) as connection:
            if value_of(connection, _IS_LOST, (self._settings.slot,)):
                raise self._errors.slot_lost()

    def _require_wal(self, stream: ReplicationStream, end: int) -> None:
        """Raise a ``ConduitError`` if the server's WAL ends before a range that was planned: its end would never come,
        while the server goes on to answer."""
        deadline = time.monotonic() + _PATIENCE
        while (there := stream.wal_end()) < end:
            if not stream.is_standby():
                raise self._errors.went_back(format_lsn(there), format_lsn(end))
            if time.monotonic() > deadline:
                message = f"the standby's WAL ends at {format_lsn(there)}, before {format_lsn(end)}, which was planned"
                raise self._errors.outage(
                    message, "postgres.busy", "wait until it has caught up with its primary; nothing was lost"
                )
            time.sleep(_PAUSE)

    def _take_over(self, name: str, waited: float) -> None:
        """Wait a moment for a slot in use; terminate a reader of this source that stays."""
        if waited > _OURS:
            with closing(self._session()) as connection:
                connection.execute(_END_READER, (self._settings.slot, name))
        time.sleep(_PAUSE)


def _batches(pieces: Iterable[bytes], options: ReadOptions) -> Iterator[list[bytes]]:
    """Yield lines or messages in batches of the size of a block."""
    batch, size = list[bytes](), 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= options.block_bytes or len(batch) >= options.block_records:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _block_of_rows(rows: RowRecords, lines: list[bytes], begin: PostgresPosition, detail: CopyDetail) -> Block:
    def boundary(place: int) -> dict[str, Any]:
        return begin.with_region(str(detail.part.table), Region(rows.order_texts(lines[place]), detail.name)).to_json()

    def again(places: Sequence[int]) -> list[Record]:
        return rows.whole([lines[place] for place in places])

    complete = _completing(lambda place: rows.positions([lines[place]])[0])
    return Block(rows.records(lines), boundary, complete, again=again, positions=lambda: rows.positions(lines))


def _block_of_changes(changes: Changes, begin: PostgresPosition) -> Iterator[Block]:
    records, made = changes.take()
    if not records:
        return

    def boundary(place: int) -> dict[str, Any]:
        return begin.at(made[place].lsn, made[place].place).to_json()

    def positions() -> list[Any]:
        return [one.position for one in made]

    # rebuilt from the messages, because the slot can't be read again while it is being read
    def again(places: Sequence[int]) -> list[Record]:
        return [made[place].record() for place in places]

    complete = _completing(lambda place: made[place].position)
    yield Block(records, boundary, complete, again=again, positions=positions)


def _completing(position: Callable[[int], str]) -> Callable[[int, Record], None]:
    def complete(place: int, record: Record) -> None:
        record.position = position(place)

    return complete


learn(CopyDetail, StreamDetail)

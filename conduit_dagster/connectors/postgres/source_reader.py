"""Reading of a split, task side: rows of a table under the driver's snapshot, or a range of the slot's stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
import psycopg
from psycopg import sql

from conduit_dagster.connectors.postgres.changes import Catalog, Changes, ReadAs, StreamRange
from conduit_dagster.connectors.postgres.connection import Connection, connect, value_of
from conduit_dagster.connectors.postgres.copied_rows import RowRecords, TablePart, copy_lines, see_as
from conduit_dagster.connectors.postgres.partitions import is_sent_in_part
from conduit_dagster.connectors.postgres.pgoutput import Columns, Relation, ReplicationStream
from conduit_dagster.connectors.postgres.row_values import Decode, OwnType, decoder_of, set_session
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.source_errors import SourceErrors, is_unreadable
from conduit_dagster.connectors.postgres.source_position import (
    PostgresPosition,
    Region,
    RowKey,
    SeenChanges,
    StreamPoint,
    format_lsn,
    parse_position,
)
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.connectors.postgres.source_tables import (
    OWN_TABLES,
    columns_by_oid,
    key_by_oid,
    kind_of,
    literals,
    names_then,
    shape_of,
)
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
    set_session(connection)
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

    # -- rows ---------------------------------------------------------------------------------------------------

    def _rows(self, begin: PostgresPosition, detail: CopyDetail, options: ReadOptions) -> Iterator[Block]:
        part = detail.part
        with closing(self._session()) as connection, _TypeCatalog(self._session, self._errors) as catalog:
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
        with _TypeCatalog(self._session, self._errors) as catalog, self._stream(start, end) as stream:
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

    def _is_read(self, table: str, begin: PostgresPosition, catalog: _TypeCatalog) -> bool:
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
            except BaseException:
                stream.close()
                raise
        with closing(stream):
            yield stream

    def _require_wal(self, stream: ReplicationStream, end: int) -> None:
        """Raise a ``ConduitError`` if the server's WAL ends before a range that was planned: its end would never come,
        while the server goes on to answer."""
        deadline = time.monotonic() + _PATIENCE
        while (there := stream.wal_end()) < end:
            if not stream.is_standby():
                raise self._errors.went_back(format_lsn(there), format_lsn(end))
            if time.monotonic() > deadline:
                message = f"the standby's WAL ends at {format_lsn(there)}, before {format_lsn(end)}, which was planned"
                raise self._errors.waiting(message, "wait until it has caught up with its primary; nothing was lost")
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


_TYPE = """
    SELECT t.typtype, t.typname, t.typbasetype,
           CASE WHEN t.typcategory = 'A' AND t.typdelim = ',' THEN t.typelem ELSE 0 END
    FROM pg_type t WHERE t.oid = %s
"""


class _Order(NamedTuple):
    places: list[int]
    """Index in the stream's key of each column of the table's index, in index order."""
    types: list[str]
    """SQL types, with the collations that order them."""


class _TypeCatalog:
    """Cached catalog queries. Connects at the first query; most tables need none."""

    def __init__(self, connect: Callable[[], Connection], errors: SourceErrors) -> None:
        self._connect = connect
        self._errors = errors
        self._relations: dict[str, Relation] = {}
        self._orders: dict[str, _Order] = {}
        self._connection: Connection | None = None
        self._types: dict[int, OwnType | None] = {}
        self._ordered: dict[tuple[str, tuple[str, ...], tuple[str, ...]], bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def decoder(self, oid: int) -> Decode:
        """Return the decoder of a type. Raises ``psycopg.Error``."""
        return decoder_of(oid, self._own_type)

    def _own_type(self, oid: int) -> OwnType | None:
        if oid not in self._types:
            row = self._asked().execute(_TYPE, (oid,)).fetchone()
            self._types[oid] = None if row is None else OwnType(*row)
        return self._types[oid]

    def keys(self, oid: int, sent: Columns) -> list[str]:
        """Return the key columns of a table by their names in a change; empty if it was dropped, or has lost columns
        since of which one may be in the key."""
        live = columns_by_oid(self._asked(), oid)
        then = names_then(sent, live)
        key = [column.name for column in key_by_oid(self._asked(), oid)]
        found = [then[name] for name in key if name in then]
        # without a column that is gone, the key would be that of several rows
        is_whole = len(found) == len(key) or {name for name, _ in sent} <= {name for name, _ in live}
        return found if is_whole else []

    def is_sent_in_part(self, oid: int) -> bool:
        """Return whether old rows of a table may lack columns, although its replica identity is full."""
        return is_sent_in_part(self._asked(), oid)

    def has_table(self, table: TableName) -> bool:
        """Return whether there is a table of this name now."""
        return kind_of(self._asked(), table) != "missing"

    def describe(self, relation: Relation) -> None:
        """Store the relation of a table. Keys of the stream are in the order of its columns."""
        self._relations[relation.name] = relation
        self._orders.pop(relation.name, None)
        self._ordered.clear()

    def not_behind(self, table: str, key: RowKey, bound: RowKey) -> bool:
        """Return whether a key of the stream is less than or equal to one of a copy, in the order of the table's
        key. Raises ``FatalError`` for one that can't be compared, being another key or having a label that is gone."""
        places, types = self._order(table)
        values = tuple(key[place] for place in places)
        asked = (table, values, tuple(bound))
        if asked not in self._ordered:
            self._ordered[asked] = self._is_not_behind(asked, types)
        return self._ordered[asked]

    def _is_not_behind(self, asked: tuple[str, tuple[str, ...], tuple[str, ...]], types: list[str]) -> bool:
        table, values, bound = asked
        if len(values) != len(bound):
            raise self._errors.order_changed(table)
        statement = sql.SQL("SELECT ({}) <= ({})").format(literals(values, types), literals(bound, types))
        try:
            return bool(value_of(self._asked(), statement))
        except psycopg.DataError:
            raise self._errors.order_changed(table) from None

    def _order(self, table: str) -> _Order:
        """Return the order of a table's copy: that of its index, which has its own column order and collations."""
        if table not in self._orders:
            relation = self._relations[table]
            live = key_by_oid(self._asked(), relation.oid)
            told = {relation.names[place]: self._type_name(relation.types[place]) for place in relation.key}
            if len(live) == len(told) and all(column.has_type(told.get(column.name, "")) for column in live):
                places = [relation.key_names.index(column.name) for column in live]
                self._orders[table] = _Order(places, [column.compared_as for column in live])
            else:
                # the table was dropped, or has another key or one of another type: use the order of the stream
                self._orders[table] = _Order(list(range(len(told))), list(told.values()))
        return self._orders[table]

    def _type_name(self, oid: int) -> str:
        return str(value_of(self._asked(), "SELECT format_type(%s::int8::oid, -1)", (oid,)))

    def _asked(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

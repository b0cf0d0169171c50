"""Destination, task side: encodes records as COPY text and stages them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.connectors.postgres.catalog import TableLookup
from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout
from conduit_dagster.connectors.postgres.encode import Encoded, TableEncoder
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.connectors.postgres.staged_rows import Index, LineGroup, LineRun, write_missing
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import NewPart, Part, Refusal, Writer, WriterTask


class CopyWriter(Writer):
    """Writer of one line per record, in record order, for all tables; the footer maps lines to tables."""

    def __init__(
        self,
        task: WriterTask,
        table_of: TableName | Callable[[Record], TableName],
        settings: PostgresDestinationSettings,
        tables: TableLookup,
    ) -> None:
        self._staging = task.staging
        self._table_of = table_of
        self._settings = settings
        self._tables = tables
        self._encoders: dict[TableName, TableEncoder] = {}
        self._absent: dict[TableName, CellError] = {}
        """Tables that did not exist at this task's first lookup: looked up once, however many records name them."""
        self._part = NewPart(task, "copy")
        self._groups: dict[LineGroup, int] = {}
        self._runs: list[LineRun] = []

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Encode and append records; refuse those that can't become a row. Raises if the database can't be queried."""
        refused: list[Refusal] = []
        encoded: list[Encoded] = []
        for table, places in self._by_table(records, refused):
            encoded += self._encode(table, records, places, refused)
        if len(encoded) == 1:
            one = encoded[0]
            self._append(one.group, len(one.places), one.data)
        else:
            self._interleave(len(records), encoded)
        return sorted(refused, key=lambda refusal: refusal.place)

    def _by_table(self, records: list[Record], refused: list[Refusal]) -> list[tuple[TableName, Sequence[int]]]:
        if isinstance(self._table_of, TableName):
            return [(self._table_of, range(len(records)))] if records else []
        found: dict[TableName, list[int]] = {}
        for place, record in enumerate(records):
            try:
                found.setdefault(self._table_of(record), []).append(place)
            except Exception as error:  # noqa: BLE001  # any error of a record becomes its nack
                refused.append(_refusal(place, error))
        return list(found.items())

    def _encode(
        self, table: TableName, records: list[Record], places: Sequence[int], refused: list[Refusal]
    ) -> list[Encoded]:
        encoder = self._encoder(table)
        if isinstance(encoder, CellError):
            refused += [_refusal(place, encoder) for place in places]
            return []
        mine = records if len(places) == len(records) else [records[place] for place in places]
        try:
            found = _encoded_or_renewed(encoder, mine)
        except ConduitError:
            raise
        except Exception:  # noqa: BLE001  # one record is at fault: find it
            return _encoded_apart(encoder, records, places, refused)
        if isinstance(places, range):
            return found
        return [one._replace(places=[places[index] for index in one.places]) for one in found]

    def _encoder(self, table: TableName) -> TableEncoder | CellError:
        """Return the encoder of a table, or the error with which its records are refused."""
        if table not in self._encoders and table not in self._absent:
            try:
                layout = ColumnLayout(self._settings, self._tables, table)
                self._encoders[table] = TableEncoder(self._settings, layout)
            except CellError as error:
                self._absent[table] = error
        return self._encoders.get(table) or self._absent[table]

    def _interleave(self, count: int, encoded: list[Encoded]) -> None:
        """Append lines in record order: a child of the delivery is a range of lines."""
        placed: list[tuple[LineGroup, bytes] | None] = [None] * count
        for one in encoded:
            for place, line in zip(one.places, one.lines(), strict=True):
                placed[place] = (one.group, line)
        for group, run in groupby((line for line in placed if line is not None), lambda line: line[0]):
            lines = [line for _, line in run]
            self._append(group, len(lines), b"".join(lines))

    def _append(self, group: LineGroup, records: int, data: bytes) -> None:
        self._part.write(data)
        number = self._groups.setdefault(group, len(self._groups))
        run = LineRun(number, records, len(data))
        if self._runs and self._runs[-1].group == number:
            last = self._runs.pop()
            run = LineRun(number, last.records + run.records, last.bytes + run.bytes)
        self._runs.append(run)

    def finish(self) -> Part | None:
        """Make the part durable, except its directory entry, which the driver syncs before it prepares."""
        self._tables.close()
        if not self._runs:
            return None
        self._part.write(Index(list(self._groups), self._runs).encode())
        part = self._part.finish(sum(run.records for run in self._runs))
        missing = [found for encoder in self._encoders.values() if (found := encoder.missing())]
        if part and missing:
            write_missing(self._staging, part, missing)
        return part

    def abort(self) -> None:
        """Abandon the file: no ledger names it, and it is removed with the staging folder."""
        self._tables.close()
        self._part.abort()


def _encoded_or_renewed(encoder: TableEncoder, records: list[Record]) -> list[Encoded]:
    try:
        return encoder.encode(records)
    except CellError:
        if not encoder.renew():
            raise
        return encoder.encode(records)


def _encoded_apart(
    encoder: TableEncoder, records: list[Record], places: Sequence[int], refused: list[Refusal]
) -> list[Encoded]:
    """Encode one record after the other, with the same result as all at once, but for those that are refused."""
    found: list[Encoded] = []
    for place in places:
        try:
            found += (one._replace(places=[place]) for one in encoder.encode([records[place]]))
        except ConduitError:
            raise
        except Exception as error:  # noqa: BLE001  # any error of a record becomes its nack
            refused.append(_refusal(place, error))
    return found


def _refusal(place: int, error: Exception) -> Refusal:
    return Refusal(place, error.nack if isinstance(error, CellError) else nack_of(error))

"""The task's side: renders records as COPY text and stages them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from conduit_dagster.connectors.base import Part, Refusal, Writer, WriterTask
from conduit_dagster.connectors.formats import nack_of
from conduit_dagster.connectors.postgres.encode import Encoded, TableEncoder, lines
from conduit_dagster.connectors.postgres.names import TableName
from conduit_dagster.connectors.postgres.rows import Group, Index, Run
from conduit_dagster.connectors.postgres.values import RecordError
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state import storage


class CopyWriter(Writer):
    """One line per record, in order, whatever table it goes to; the footer says where."""

    def __init__(
        self,
        task: WriterTask,
        table_of: TableName | Callable[[Record], TableName],
        encoder: Callable[[TableName], TableEncoder],
    ) -> None:
        self._task = task
        self._table_of = table_of
        self._make = encoder
        self._encoders: dict[TableName, TableEncoder] = {}
        self._name = f"{task.index:05d}-{task.token}.copy"
        self._file: storage.NewFile | None = None
        self._groups: dict[Group, int] = {}
        self._runs: list[Run] = []

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Renders and appends; what can't be a row is refused. Raises where the database can't be asked."""
        refused: list[Refusal] = []
        encoded: list[tuple[Encoded, bytes]] = []
        for table, places in self._by_table(records, refused):
            encoded += self._encode(table, records, places, refused)
        if len(encoded) == 1:
            one, data = encoded[0]
            self._append(one.group, len(one.rows), data)
        else:
            self._interleave(len(records), [one for one, _ in encoded])
        return sorted(refused, key=lambda refusal: refusal.place)

    def _by_table(self, records: list[Record], refused: list[Refusal]) -> list[tuple[TableName, Sequence[int]]]:
        if isinstance(self._table_of, TableName):
            return [(self._table_of, range(len(records)))] if records else []
        found: dict[TableName, list[int]] = {}
        for place, record in enumerate(records):
            try:
                found.setdefault(self._table_of(record), []).append(place)
            except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
                refused.append(_refusal(place, error))
        return list(found.items())

    def _encode(
        self, table: TableName, records: list[Record], places: Sequence[int], refused: list[Refusal]
    ) -> list[tuple[Encoded, bytes]]:
        if table not in self._encoders:
            self._encoders[table] = self._make(table)
        encoder = self._encoders[table]
        mine = records if len(places) == len(records) else [records[place] for place in places]
        try:
            found = _encoded_or_renewed(encoder, mine)
        except ConduitError:
            raise
        except Exception:  # noqa: BLE001  # one record's fault: find it
            places = [place for place in places if not _is_refused(encoder, records[place], place, refused)]
            found = _encoded(encoder, [records[place] for place in places]) if places else []
        if isinstance(places, range):
            return found
        return [(one._replace(places=[places[index] for index in one.places]), data) for one, data in found]

    def _interleave(self, count: int, encoded: list[Encoded]) -> None:
        """Back into the order of the records: a child of the delivery is a range of lines."""
        placed: list[tuple[Group, str] | None] = [None] * count
        for one in encoded:
            for place, row in zip(one.places, one.rows, strict=True):
                placed[place] = (one.group, row)
        for group, run in groupby((line for line in placed if line is not None), lambda line: line[0]):
            rows = [row for _, row in run]
            self._append(group, len(rows), lines(rows))

    def _append(self, group: Group, records: int, data: bytes) -> None:
        self._open().write(data)
        number = self._groups.setdefault(group, len(self._groups))
        run = Run(number, records, len(data))
        if self._runs and self._runs[-1].group == number:
            last = self._runs.pop()
            run = Run(number, last.records + run.records, last.bytes + run.bytes)
        self._runs.append(run)

    def _open(self) -> storage.NewFile:
        if self._file is None:
            storage.make_folder(self._task.staging)
            self._file = storage.NewFile(storage.join(self._task.staging, self._name))
        return self._file

    def finish(self) -> Part | None:
        """Durable from here on, but for the folder's entry, which the driver syncs before it prepares."""
        if self._file is None:
            return None
        missing = [found for encoder in self._encoders.values() if (found := encoder.missing())]
        self._file.write(Index(list(self._groups), self._runs, missing).encode())
        records = sum(run.records for run in self._runs)
        return Part(self._name, records, self._file.bytes, self._file.finish())

    def abort(self) -> None:
        """Leaves a file that no ledger names; it goes with the staging folder."""
        if self._file is not None:
            self._file.abort()


def _encoded_or_renewed(encoder: TableEncoder, records: list[Record]) -> list[tuple[Encoded, bytes]]:
    try:
        return _encoded(encoder, records)
    except RecordError:
        if not encoder.renew():
            raise
        return _encoded(encoder, records)


def _encoded(encoder: TableEncoder, records: list[Record]) -> list[tuple[Encoded, bytes]]:
    # to bytes at once: a lone surrogate shows here, where its record can still be refused
    return [(one, one.data()) for one in encoder.encode(records)]


def _is_refused(encoder: TableEncoder, record: Record, place: int, refused: list[Refusal]) -> bool:
    try:
        _encoded(encoder, [record])
    except ConduitError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a record holds is its own nack
        refused.append(_refusal(place, error))
        return True
    return False


def _refusal(place: int, error: Exception) -> Refusal:
    return Refusal(place, error.nack if isinstance(error, RecordError) else nack_of(error))

"""Channel by which a running task queries Spark: in one Spark task, ``asks`` → a Spark projection → ``answering``.

``answering`` runs the stage's own function. Its questions go to ``asks`` over a Unix socket; ``asks`` passes them to
Spark as rows, and the answers arrive among the input rows of ``answering``. So the source is read once, order and
partitions are kept, and it is one Spark job without a shuffle.

Spark passes rows on when its buffers are full, not when rows are available: each question is followed by filler rows
that push it through. In case a version of Spark buffers more, further rows follow as long as an answer is outstanding.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.sql.query import Answer, SqlQuery, arrow, evaluating_with
from conduit_dagster.spark.sql.sql_session import BATCH

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, head: bytes, body: Any) -> None:
    """Send head and body as one message."""
    connection.sendall(_LENGTH.pack(len(head) + len(body)) + head)
    if len(body):
        connection.sendall(body)


def receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None if the other side has closed. Raises ``TimeoutError`` only before it begins."""
    if not (first := connection.recv(1)):
        return None
    timeout = connection.gettimeout()
    connection.settimeout(None)
    try:
        length = _exactly(connection, _LENGTH.size - 1)
        return None if length is None else _exactly(connection, _LENGTH.unpack(first + length)[0])
    finally:
        connection.settimeout(timeout)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        if not (read := connection.recv_into(view[got:])):
            return None
        got += read
    return bytes(data)


def question_schema(queries: Iterable[SqlQuery]) -> Any:
    """Return the Arrow schema of questions to these queries."""
    import pyarrow as pa

    asked = [(query.name, arrow(query.struct)) for query in queries]
    own = [("address", pa.string()), ("seq", pa.int64()), ("why", pa.bool_())]
    return pa.schema([*own, *asked, ("filler", pa.string())])


def rows_of(query: SqlQuery, columns: Sequence[Any], why: bool, schema: Any) -> Any:
    """Return a batch of questions to one query: one per row of ``columns``, which must not be empty."""
    import pyarrow as pa

    count = len(columns[0])
    struct = pa.StructArray.from_arrays(columns, fields=list(schema.field(query.name).type))
    own = {"seq": pa.array(range(count), pa.int64()), "why": pa.repeat(pa.scalar(why), count), query.name: struct}
    return _batch(own, count, schema)


def filling(count: int, schema: Any, address: str | None = None, filler: str | None = None) -> Any:
    """Return rows without a question; the last one carries the filler."""
    import pyarrow as pa

    last = pa.array([*[None] * (count - 1), filler], pa.string())
    return _batch({"address": pa.array([address] * count, pa.string()), "filler": last}, count, schema)


def _batch(own: dict[str, Any], count: int, schema: Any) -> Any:
    import pyarrow as pa

    arrays = [own[field.name] if field.name in own else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_PUSHES = 300
"""Maximum number of pushes while the other half has not connected: it is still starting, or has ended."""
_PUSH_AGAIN = 1.0
"""Seconds without an answer after which more filler rows follow."""
_ANSWERED = b""


def asks(queries: Sequence[SqlQuery], batches: Iterator[Any]) -> Iterator[Any]:
    """Run the first half: take rows of task numbers; yield the address of its socket, then questions."""
    schema = question_schema(queries)
    names = [query.name for query in queries]
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from _asked(int(number), schema, names)


def _asked(number: int, schema: Any, names: Sequence[str]) -> Iterator[Any]:
    # a socket's path has at most 107 bytes
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="conduit-sql-", dir=base if len(base) < 64 else "/tmp"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        server.listen(1)
        try:
            yield filling(BATCH, schema, f"{number}:{folder / 's'}")
            connection = yield from _accepted(server, schema)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if connection is not None:
        with connection:
            yield from _questions(connection, schema, names)


def _accepted(server: socket.socket, schema: Any) -> Generator[Any, None, socket.socket | None]:
    """Yield filler rows until the other half connects; return the connection, or None (Spark then reports why)."""
    server.settimeout(_PUSH_AGAIN)
    for _ in range(_PUSHES):
        yield from _push(schema)
        try:
            return server.accept()[0]
        except TimeoutError:
            pass
    return None


def _questions(connection: socket.socket, schema: Any, names: Sequence[str]) -> Iterator[Any]:
    while True:
        connection.settimeout(None)
        if (message := receive(connection)) is None:
            return
        yield from _rows(message, schema, names)
        yield from _push(schema)
        connection.settimeout(_PUSH_AGAIN)
        while True:
            try:
                said = receive(connection)
            except TimeoutError:
                # the other half reads while it waits for an answer, so both directions can't block at once
                yield from _push(schema)
                continue
            if said is None:
                return
            break


def _rows(message: bytes, schema: Any, names: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa

    place, why = message[0], bool(message[1])
    batch = pa.ipc.open_stream(pa.py_buffer(message[2:])).read_next_batch()
    query = SqlQuery(names[place], (), "", ())
    yield rows_of(query, batch.columns, why, schema)
    if rest := -batch.num_rows % BATCH:
        yield filling(rest, schema)


def _push(schema: Any) -> Iterator[Any]:
    # the second batch pushes the first out of this process's buffer, the first one pushes earlier rows out of Spark's
    filler = "x" * (2 * int(os.environ.get("SPARK_BUFFER_SIZE", 65_536)))
    yield filling(BATCH, schema, filler=filler)
    yield filling(BATCH, schema, filler=filler)


Function = Callable[[Iterator[Any]], Iterator[Any]]


def answering(
    queries: Sequence[SqlQuery], types: dict[str, str], function: Function, batches: Iterator[Any]
) -> Iterator[Any]:
    """Run the second half: take answers; yield the output of ``function`` for the task's number."""
    import pyarrow as pa

    rows = iter(batches)
    for batch in rows:
        address = batch.column("address")[0].as_py()
        if address is None:
            continue
        number, _, path = address.partition(":")
        numbers = pa.RecordBatch.from_pydict({"id": pa.array([int(number)], pa.int64())})
        with _connected(path) as connection, evaluating_with(_TaskEvaluator(connection, rows, queries, types)):
            # consume all of it while questions can still be sent
            found = list(function(iter([numbers])))
        yield from found


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


class _TaskEvaluator:
    def __init__(
        self, connection: socket.socket, rows: Iterator[Any], queries: Sequence[SqlQuery], types: dict[str, str]
    ) -> None:
        self._connection, self._rows, self._types = connection, rows, types
        self._places = {query.name: place for place, query in enumerate(queries)}

    def types(self, query: SqlQuery) -> str:
        return self._types[query.name]

    def ask(self, query: SqlQuery, columns: Sequence[Any], why: bool = False) -> list[Answer]:
        import pyarrow as pa

        batch = pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        head = bytes([self._places[query.name], why])
        # in a thread: filler rows of the previous question may have to be read before this one can be sent
        sending = threading.Thread(target=send, args=(self._connection, head, sink.getvalue()), daemon=True)
        sending.start()
        answers = self._answers(batch.num_rows)
        sending.join()
        send(self._connection, _ANSWERED, b"")
        return answers

    def _answers(self, count: int) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < count:
            batch = next(self._rows, None)
            if batch is None:
                raise TransientError("Spark ended before it answered", code="spark.job_failed")
            seq = batch.column("seq")
            if seq.null_count == len(seq):
                continue
            own = batch.filter(seq.is_valid())
            expected = range(len(answers), len(answers) + own.num_rows)
            # each answer must belong to its record, otherwise the step fails: only their order pairs them
            if own.column("seq").to_pylist() != list(expected):
                raise TransientError("Spark's answers are out of order", code="spark.job_failed")
            answers += own.column("answer").to_pylist()
        return answers

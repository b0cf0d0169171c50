"""Footer of a Parquet file: its row groups, its columns' types, and a digest that identifies the file."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_state import FoundFile, found_of
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error

_WHOLE: Final = 8 << 20
_END: Final = 1 << 20
_PIECE: Final = 1 << 14
_PIECES: Final = 64


class RowGroup(NamedTuple):
    """A row group."""

    rows: int
    bytes: int
    """Approximate size of its values once they are decoded."""


class Footer(NamedTuple):
    """Footer data that the source needs."""

    mark: str
    """Digest of the whole file up to 8 MB: other content has another mark. For a larger file, digest of samples and of
    the end, where the footer records the length of every column's data.
    """
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Number of rows in the whole file."""
        return sum(group.rows for group in self.groups)

    @property
    def row_bytes(self) -> int:
        """Approximate bytes per row."""
        return max(1, sum(group.bytes for group in self.groups) // max(1, self.rows))


@contextmanager
def open_planned(url: str, mark: str, seen: Sequence[int]) -> Generator[Any]:
    """Open the planned file, as ``pyarrow.parquet.ParquetFile``.

    Accepts the file that was ``seen`` (see :func:`seen_of`), or one with the same mark, judging by the descriptor that
    is read, not by the path. Raises ``TransientError`` if it is another file, or not, or not yet, a Parquet file.
    """
    with _opened(url) as file:
        is_seen = bool(seen) and list(seen) == seen_of(_found(file, url))
        if not is_seen and _mark(file) != mark:
            raise TransientError(
                f"{url.rsplit('/', 1)[-1]} was replaced while it was to be read",
                code="file.moved",
                place=url,
                fix="run again; files are expected not to change once they have their name",
            )
        with _parquet(file) as parquet:
            yield parquet


def read_footer(url: str) -> tuple[FoundFile, Footer]:
    """Return the footer, and the file that it was read from.

    Raises ``TransientError`` if that is not, or not yet, a Parquet file, ``FatalError`` if two columns, or two fields
    inside one, have the same name.
    """
    with _opened(url) as file, _parquet(file) as parquet:
        found, metadata = _found(file, url), parquet.metadata
        _require_distinct(parquet.schema_arrow, url)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        footer = Footer(_mark(file), tuple(RowGroup(group.num_rows, _decoded_bytes(group)) for group in groups))
        if _found(file, url) != found:
            raise unreadable(url, "it changes while it is looked at")
        return found, footer


def row_count(url: str) -> int:
    """Return the number of rows, without a look at the content. Raises ``TransientError`` for an unreadable file."""
    with _opened(url) as file, _parquet(file) as parquet:
        return parquet.metadata.num_rows


def seen_of(found: FoundFile) -> list[int]:
    """Return the file's observable state: while it is unchanged, so is the content.

    Empty for a remote file, which has no such state.
    """
    return [found.inode, found.size, found.modified, found.changed, found.birth] if found.inode else []


@contextmanager
def _opened(url: str) -> Generator[IO[bytes]]:
    """Open the file behind one descriptor, so that its identity, mark and rows belong to the same file."""
    try:
        with storage.open_read(url) as file:
            yield file
    except pa.ArrowException as error:
        raise unreadable(url, str(error)) from error
    except OSError as error:
        # Arrow raises it for a damaged page or an encrypted file, without the number that a system's error has
        raise (from_os_error(error, f"can't read {url}") if error.errno else unreadable(url, str(error))) from error


def _parquet(file: IO[bytes]) -> Any:
    # Spark's own timestamps are INT96, which as nanoseconds would overflow in the years 1677 and 2262
    opened = pa.PythonFile(file, "r")
    # Spark writes checksums: without a look at them, most damage would only be other values
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


_FEW_ROWS: Final = 1000
"""Rows that fit in memory however long a text they repeat."""
_LONG_TEXT: Final = 16 << 10
"""Assumed length of a repeated text that statistics leave out: pyarrow and Spark do so above 4 KB."""


def _decoded_bytes(group: Any) -> int:
    """Return the row group's encoded size, plus what decoding adds: a dictionary holds a repeated text once."""
    if group.num_rows <= _FEW_ROWS:
        return group.total_byte_size
    chunks = (group.column(i) for i in range(group.num_columns))
    texts = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page]
    repeated = (max(0, _text_bytes(chunk) - chunk.total_uncompressed_size) for chunk in texts)
    return group.total_byte_size + sum(repeated)


def _text_bytes(chunk: Any) -> int:
    """Estimate the decoded bytes of a column of text from its smallest and its largest value."""
    known = chunk.statistics
    count = chunk.num_values - (known.null_count or 0 if known is not None else 0)
    if known is not None and known.has_min_max:
        return count * (len(known.min_raw) + len(known.max_raw)) // 2
    return count * min(_LONG_TEXT, chunk.total_uncompressed_size)


def _found(file: IO[bytes], url: str) -> FoundFile:
    name = url.rsplit("/", 1)[-1]
    if not storage.is_local(url):
        return FoundFile(url, name, 0, file.seek(0, io.SEEK_END), 0)
    descriptor = file.fileno()
    return found_of(url, name, os.fstat(descriptor), descriptor)


def _mark(file: IO[bytes]) -> str:
    """Return the digest of a whole small file; for a large one, of its end (the footer) and of samples of the rest."""
    total = file.seek(0, io.SEEK_END)
    sha = hashlib.sha256(str(total).encode())
    step = max(_PIECE, (total - _END) // _PIECES)
    places = range(0, total, _PIECE) if total <= _WHOLE else [*range(0, total - _END, step), total - _END]
    for place in places:
        file.seek(place)
        sha.update(file.read(_END if place == total - _END else _PIECE))
    return sha.hexdigest()[:16]


def _require_distinct(schema: Any, url: str) -> None:
    twice = list(_twice(schema, ""))
    if twice:
        raise FatalError(
            f"{url.rsplit('/', 1)[-1]} has several columns called {', '.join(twice)}, and a document has a field once",
            code="parquet.columns_twice",
            place=url,
            fix="write the file with other names, or move it away",
        )


def _twice(fields: Iterable[Any], inside: str) -> Iterator[str]:
    """Yield the path of each field that has the name of another one beside it, at any depth."""
    counts = Counter[str]()
    for field in fields:
        counts[field.name] += 1
        if counts[field.name] == 2:
            yield inside + field.name
        kind = getattr(field.type, "storage_type", field.type)
        yield from _twice([kind.field(i) for i in range(kind.num_fields)], f"{inside}{field.name}.")


def unreadable(url: str, why: str) -> TransientError:
    """Return the error for a file that is not Parquet, is damaged, or is still being written."""
    return TransientError(
        f"{url.rsplit('/', 1)[-1]} can't be read as Parquet: {why.partition(chr(10))[0]}",
        code="parquet.unreadable",
        place=url,
        fix="write files under a hidden name (.NAME or _NAME) and rename them when whole, or move this one away",
    )


_INT96: Final = "INT96"
_ENUM: Final = "ENUM"
_INSTANT: Final = pa.timestamp("us", "UTC")
_types: Any = pa.types


def spark_schema(parquet: Any) -> Any:
    """Return the file's Arrow schema with INT96 columns as instants and ENUM columns as text; None if it has none.

    Parquet's format says so, and Spark reads them so. Spark writes its TIMESTAMP, which is an instant, as INT96 by
    default; Arrow reads it as a time without a zone. Writers of Avro, Thrift and Protobuf objects write an enumeration
    as ENUM; Arrow reads it as binary.
    """
    columns = [parquet.schema.column(i) for i in range(len(parquet.schema))]
    stored = [column.physical_type if column.logical_type.type != _ENUM else _ENUM for column in columns]
    if {_INT96, _ENUM}.isdisjoint(stored):
        return None
    leaves = iter(stored)
    return pa.schema([field.with_type(_spark_type(field.type, leaves)) for field in parquet.schema_arrow])


def _spark_type(kind: Any, leaves: Iterator[str]) -> Any:
    """Return the type as Spark reads it. ``leaves``: what is stored, from the first leaf of this type on."""

    def inside(field: Any) -> Any:
        return field.with_type(_spark_type(field.type, leaves))

    if _types.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if _types.is_map(kind):
        return pa.map_(inside(kind.key_field), inside(kind.item_field))
    if _types.is_list(kind):
        return pa.list_(inside(kind.value_field))
    if _types.is_large_list(kind):
        return pa.large_list(inside(kind.value_field))
    if _types.is_fixed_size_list(kind):
        return pa.list_(inside(kind.value_field), kind.list_size)
    stored = [next(leaves) for _ in range(_leaves(kind))]
    if stored == [_ENUM]:
        return pa.string()
    return _INSTANT if _types.is_timestamp(kind) and stored == [_INT96] else kind


def _leaves(kind: Any) -> int:
    """Return the number of Parquet columns of a type."""
    stored = getattr(kind, "storage_type", kind)
    return sum(_leaves(stored.field(i).type) for i in range(stored.num_fields)) or 1

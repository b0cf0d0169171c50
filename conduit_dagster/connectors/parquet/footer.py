"""What a Parquet file says of itself at its end."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error
from conduit_dagster.state import storage

_WHOLE: Final = 8 << 20
_END: Final = 1 << 20
_PIECE: Final = 1 << 14
_PIECES: Final = 64


class Group(NamedTuple):
    """A row group."""

    rows: int
    bytes: int
    """Of its columns as they are encoded, before compression."""


class Footer(NamedTuple):
    """What the source needs of it."""

    mark: str
    """A digest of the file, whole up to 8 MB: another content, another mark. Of a larger one, of pieces and of the end,
    where the footer says how long every column's data is."""
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        """Of the whole file."""
        return sum(group.rows for group in self.groups)

    @property
    def row_bytes(self) -> int:
        """What a row weighs, about."""
        return max(1, sum(group.bytes for group in self.groups) // max(1, self.rows))


def open_parquet(url: str) -> Any:
    """The file, as ``pyarrow.parquet.ParquetFile``. Raises ``TransientError`` where it is none, or none yet."""
    path = storage.local_path(url)
    try:
        return _parquet(pa.OSFile(str(path)) if path is not None else pa.PythonFile(storage.open_read(url), "r"))
    except pa.ArrowException as error:
        raise unreadable(url, error) from error
    except OSError as error:
        raise from_os_error(error, f"can't read {url}") from error


def _parquet(file: Any) -> Any:
    # Spark's own times are INT96, which as nanoseconds would wrap in the years 1677 and 2262
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def read_footer(url: str) -> Footer:
    """The file's footer. Raises as :func:`open_parquet`."""
    try:
        with storage.open_read(url) as file, _parquet(pa.PythonFile(file, "r")) as parquet:
            metadata = parquet.metadata
            _require_distinct(parquet.schema_arrow.names, url)
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            found = tuple(Group(group.num_rows, group.total_byte_size) for group in groups)
            # of the same open file: one that is put into its place meanwhile is another one
            return Footer(_mark(file), found)
    except pa.ArrowException as error:
        raise unreadable(url, error) from error
    except OSError as error:
        raise from_os_error(error, f"can't read {url}") from error


def _mark(file: IO[bytes]) -> str:
    """Of all of a small file; of a large one its end, where the footer is, and pieces spread over the rest."""
    total = file.seek(0, io.SEEK_END)
    sha = hashlib.sha256(str(total).encode())
    step = max(_PIECE, (total - _END) // _PIECES)
    places = range(0, total, _PIECE) if total <= _WHOLE else [*range(0, total - _END, step), total - _END]
    for place in places:
        file.seek(place)
        sha.update(file.read(_END if place == total - _END else _PIECE))
    return sha.hexdigest()[:16]


def _require_distinct(names: Sequence[str], url: str) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise FatalError(
            f"{url.rsplit('/', 1)[-1]} has several columns called {', '.join(twice)}, and a document has a field once",
            code="parquet.columns_twice",
            place=url,
            fix="write the file with other names, or move it away",
        )


def unreadable(url: str, error: Exception) -> TransientError:
    """A file that is not Parquet, is damaged, or is still being written."""
    why = str(error).partition("\n")[0]
    return TransientError(
        f"{url.rsplit('/', 1)[-1]} can't be read as Parquet: {why}",
        code="parquet.unreadable",
        place=url,
        fix="write files under a hidden name (.NAME or _NAME) and rename them when whole, or move this one away",
    )

"""What a Parquet file says of itself at its end."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster.recovery.errors import TransientError, from_os_error
from conduit_dagster.state import storage

_TAIL: Final = 8
"""The footer's length and the magic number."""


class Group(NamedTuple):
    """A row group."""

    rows: int
    bytes: int
    """Of its columns as they are encoded, before compression."""


class Footer(NamedTuple):
    """What the source needs of it."""

    mark: str
    """A digest of the footer, which says where every column of every row group lies: another content, another mark."""
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
        return pq.ParquetFile(pa.OSFile(str(path)) if path is not None else pa.PythonFile(storage.open_read(url), "r"))
    except pa.ArrowException as error:
        raise unreadable(url, error) from error
    except OSError as error:
        raise from_os_error(error, f"can't read {url}") from error


def read_footer(url: str) -> Footer:
    """The file's footer. Raises as :func:`open_parquet`."""
    with open_parquet(url) as file:
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        found = tuple(Group(group.num_rows, group.total_byte_size) for group in groups)
    return Footer(_mark(url), found)


def _mark(url: str) -> str:
    total = storage.size(url) or 0
    length = struct.unpack("<I", b"".join(storage.chunks(url, total - _TAIL, 4)))[0]
    begin = max(0, total - _TAIL - length)
    return storage.digest(url, begin)[1][:16]


def unreadable(url: str, error: Exception) -> TransientError:
    """A file that is not Parquet, is damaged, or is still being written."""
    why = str(error).partition("\n")[0]
    return TransientError(
        f"{url.rsplit('/', 1)[-1]} can't be read as Parquet: {why}",
        code="parquet.unreadable",
        place=url,
        fix="write files under a hidden name (.NAME or _NAME) and rename them when whole, or move this one away",
    )

"""The columns that all files of a destination's folder share, kept in the folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import Schema, lacking
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.state import storage

FILE: Final = "_conduit_columns"
"""Readers of Parquet folders skip names that begin with ``_``."""


class FolderColumns:
    """An Arrow schema in a file of the folder. Whoever writes the first rows makes it; for the others it stands."""

    def __init__(self, folder: str, asked: Schema) -> None:
        """``folder``: its URL; ``asked``: the columns of the setting; none where it is empty."""
        self._folder, self._asked = folder, asked
        self._file = storage.join(folder, FILE)

    def agreed(self, offered: Callable[[], Schema] | None = None) -> Schema | None:
        """The folder's columns; where it has none yet, those of the setting, else ``offered``, from now on.

        None where there is nothing to agree on. Raises ``FatalError`` where the setting names others.
        """
        try:
            there = self._read()
            if there is None and offered is not None:
                schema = self._asked or offered()
                if len(schema):
                    self._create(schema)
                    there = self._read()
        except OSError as error:
            raise from_os_error(error, f"can't write {self._folder}") from error
        if there is not None:
            self._require(there)
        return there

    def _read(self) -> Schema | None:
        try:
            with storage.open_read(self._file) as file:
                return pa.ipc.read_schema(pa.py_buffer(file.read()))
        except FileNotFoundError:
            return None
        except pa.ArrowException as error:
            raise FatalError(
                f"{FILE} is damaged: {error}",
                code="parquet.columns_damaged",
                place=self._file,
                fix="remove that file: the next rows make it anew; files that are there keep their columns",
            ) from error

    def _create(self, schema: Schema) -> None:
        """By one writer only: tasks that come second take the first one's columns."""
        storage.make_folder(self._folder)
        storage.put_new(self._file, schema.serialize().to_pybytes())

    def _require(self, there: Schema) -> None:
        if wrong := lacking(self._asked, there):
            raise FatalError(
                f"the files in {self._folder} are without the columns {', '.join(wrong)}",
                code="parquet.columns_differ",
                place=self._folder,
                fix="leave the setting columns out to take the folder's, or name another folder",
            )

"""The columns that all files of a destination's folder share, kept in the folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa

from conduit_dagster.connectors.columnar.columns import Schema
from conduit_dagster.connectors.entries import sync_entry
from conduit_dagster.recovery.errors import FatalError, from_os_error

FILE: Final = "_conduit_columns"
"""Readers of Parquet folders skip names that begin with ``_``."""


class FolderColumns:
    """An Arrow schema in a file of the folder. Whoever writes the first rows makes it; for the others it stands."""

    def __init__(self, folder: Path, asked: Schema) -> None:
        """``asked``: the columns of the setting; none where it is empty."""
        self._folder, self._asked = folder, asked

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
            return pa.ipc.read_schema(pa.py_buffer((self._folder / FILE).read_bytes()))
        except FileNotFoundError:
            return None
        except pa.ArrowException as error:
            raise FatalError(
                f"{FILE} is damaged: {error}",
                code="parquet.columns_damaged",
                place=str(self._folder / FILE),
                fix="remove that file: the next rows make it anew; files that are there keep their columns",
            ) from error

    def _create(self, schema: Schema) -> None:
        """All of it or nothing, and by one writer only: tasks that come second take the first one's columns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ready = self._folder / f"{FILE}.{secrets.token_hex(8)}"
        with ready.open("xb") as file:
            file.write(schema.serialize().to_pybytes())
            file.flush()
            os.fsync(file.fileno())
        try:
            (self._folder / FILE).hardlink_to(ready)
        except FileExistsError:
            pass
        finally:
            ready.unlink()
        sync_entry(self._folder / FILE)

    def _require(self, there: Schema) -> None:
        kinds = {field.name: field.type for field in there}
        wrong = [f"{field.name}:{field.type}" for field in self._asked if kinds.get(field.name) != field.type]
        if wrong:
            raise FatalError(
                f"the files in {self._folder} are without the columns {', '.join(wrong)}",
                code="parquet.columns_differ",
                place=str(self._folder),
                fix="leave the setting columns out to take the folder's, or name another folder",
            )

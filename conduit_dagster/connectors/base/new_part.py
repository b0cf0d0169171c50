"""The one file that a task stages."""

from __future__ import annotations

from conduit_dagster.connectors.base.writer import WriterTask
from conduit_dagster.state import storage
from conduit_dagster.state.steps import Part


class NewPart:
    """A part being written. Its file is made with the first byte; a task that stages nothing leaves none."""

    def __init__(self, task: WriterTask, suffix: str) -> None:
        self._staging = task.staging
        self._name = f"{task.index:05d}-{task.token}.{suffix}"
        self._file: storage.NewFile | None = None

    def write(self, data: bytes) -> None:
        """Appends. Raises ``OSError``, and nothing of the part counts then."""
        if self._file is None:
            storage.make_folder(self._staging)
            self._file = storage.NewFile(storage.join(self._staging, self._name))
        self._file.write(data)

    def finish(self, records: int) -> Part | None:
        """Durable from here on, but for the folder's entry, which the driver syncs before it prepares.

        None where nothing was written. ``records`` is how many records the part holds.
        """
        if self._file is None:
            return None
        return Part(self._name, records, self._file.bytes, self._file.finish())

    def abort(self) -> None:
        """Leaves a file that no ledger names; it goes with the staging folder."""
        if self._file is not None:
            self._file.abort()

"""Writer of staged messages, on the task's side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conduit_dagster.connectors.kafka.staged_messages import MessageLayout, Messages, packed
from conduit_dagster.even_pieces import EvenPieces
from conduit_dagster.record import Record
from conduit_dagster.sdk import NewPart, Part, Refusal, Writer, WriterTask

_CHUNK = 2_000


class MessageWriter(Writer):
    """Writer of a task's messages into one file, in chunks of ``_CHUNK``."""

    def __init__(self, task: WriterTask, layout: MessageLayout) -> None:
        self._layout = layout
        self._part = NewPart(task, "messages")
        self._waiting = EvenPieces(len(Messages._fields), _CHUNK)
        self._records = 0

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Append the messages of the records; refuse those that can't become a message."""
        messages, refused = self._layout.messages(records)
        if messages is not None:
            self._append(self._waiting.add(messages))
        return refused

    def _append(self, pieces: Iterable[list[list[Any]]]) -> None:
        for piece in pieces:
            self._part.write(packed(Messages(*piece)))
            self._records += len(piece[0])

    def finish(self) -> Part | None:
        """Finish the file and return its part."""
        self._append(self._waiting.rest())
        return self._part.finish(self._records)

    def abort(self) -> None:
        """Abort the file."""
        self._part.abort()

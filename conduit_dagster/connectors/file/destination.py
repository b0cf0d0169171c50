"""The ``file`` destination: one ordered file, or a folder of parts; and the history of its output, in its target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.file.ordered_file import MISSING, OrderedFile
from conduit_dagster.connectors.file.path_destination import (
    PartsFolder,
    PathDestination,
    PathLayout,
    countable_files,
    newest_file,
)
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.connectors.formats import OpenCdcJson, PayloadAsJson, PayloadJson, Template, make_format
from conduit_dagster.sdk import ConnectorContext, Delivery, Keys, StagedWriter, Strategy, Target, Writer, WriterTask


class FileDestination(PathDestination):
    """Lines in source order. After any crash every line is there exactly once: a repeat rewrites the same bytes.

    With at-most-once nothing is repeated: an interrupted delivery stays incomplete, and the next begins on a new line.
    """

    name = "file"
    Settings = FileDestinationSettings
    settings: FileDestinationSettings
    strategies = frozenset({"exactly-once", "at-least-once", "at-most-once"})
    changes_records = False
    takes_payloads = True

    def __init__(self, settings: FileDestinationSettings, context: ConnectorContext) -> None:
        self._format = make_format(settings.format, settings.format_options)
        self.reads_keys = Keys.ALL if self._format.reads_key else Keys.NONE
        super().__init__(settings, context, settings.path)

    @classmethod
    def strategies_with(cls, settings: Mapping[str, str]) -> frozenset[Strategy]:
        """Return all strategies, without exactly-once for ``if-changed: adopt``.

        If another process wrote over a half-written delivery, adopt would write the whole delivery again after it.
        """
        adopts = settings.get("if-changed") == "adopt"
        return cls.strategies - {"exactly-once"} if adopts else cls.strategies

    @property
    def is_one_file(self) -> bool:
        """Whether it writes one ordered file, and not a folder of parts."""
        return isinstance(self._layout, OrderedFile)

    def row_count(self) -> int | None:
        """Return the number of lines; None if a record may take several."""
        return None if isinstance(self._format, Template) else _count_lines(self._path)

    def preview(self, rows: int) -> Sequence[Mapping[str, Any]]:
        """Return the payloads of the newest lines that are documents."""
        if isinstance(self._format, OpenCdcJson | PayloadJson | PayloadAsJson):
            return _last_documents(self._path, rows, whole=isinstance(self._format, OpenCdcJson))
        return ()

    def _layout_at(self, path: Path) -> PathLayout:
        if self._is_folder(path):
            return PartsFolder(path, self.context)
        return OrderedFile(path, self.context, adopt=self.settings.if_changed == "adopt")

    def _is_folder(self, path: Path) -> bool:
        if self.settings.layout == "auto":
            # unlike Path.is_dir, never raises: a path that can't be examined is reported when it is opened
            return self.settings.path.endswith("/") or os.path.isdir(path)  # noqa: PTH112
        return self.settings.layout == "folder"

    def target(self, previous: Target | None) -> Target:
        """Return the exact target of this delivery, and the format of its lines."""
        known = _placed(previous or {}, self.context.root)
        made = super().target({key: value for key, value in known.items() if key not in _HISTORY} or None)
        return _planned(made, known, self.settings.format)

    def retarget(self, delivery: Delivery) -> Target | None:
        """Return another target with the same history, only for one ordered file with ``if-changed: adopt``."""
        made = super().retarget(delivery)
        lost = delivery.target
        return made and {**made, **{key: lost[key] for key in _HISTORY if key in lost}}

    def publish(self, delivery: Delivery) -> Target:
        """Publish all of the delivery, or nothing that a later step could follow; any process may repeat it."""
        return _published(super().publish(delivery), delivery)

    def settled(self, delivery: Delivery) -> Target:
        """Make the delivery durable and return the target after it."""
        return _published(super().settled(delivery), delivery)

    def expected(self, delivery: Delivery) -> Target:
        """Return the future result of :meth:`settled`, whether or not the delivery succeeds."""
        return _published(self._layout.expected(delivery), delivery)

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages encoded lines."""
        return StagedWriter(task, self._format)


_MOST_BYTES: Final = 32 << 20
_TAIL: Final = 1 << 16


def _count_lines(path: Path) -> int | None:
    """Return the number of lines in all files; None for many files, or for more than 32 MB."""
    files = countable_files(path)
    if files is None or sum(os.path.getsize(file) for file in files) > _MOST_BYTES:  # noqa: PTH202
        return None
    return sum(Path(file).read_bytes().count(b"\n") for file in files)


def _last_documents(path: Path, rows: int, whole: bool) -> list[Mapping[str, Any]]:
    """Return the last lines of the newest file that are documents, in order.

    ``whole``: lines are complete records, whose payload is returned.
    """
    newest = newest_file(path)
    if newest is None:
        return []
    with Path(newest).open("rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(begin)
        lines = file.read().split(b"\n")
    # the first line may be cut off at its beginning; the last is empty, or still being written
    complete = lines[1 if begin else 0 : -1]
    found = [_document(line, whole) for line in complete[-rows:]]
    return [document for document in found if document is not None]


def _document(line: bytes, whole: bool) -> dict[str, Any] | None:
    try:
        found: Any = msgspec.json.decode(line)
        found = found["payload"]["after"] if whole else found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return found if isinstance(found, dict) else None


NO_FORMAT: Final = ""
"""Instead of a format: lines that at-most-once did not deliver, with line ends in their place."""
_NEXT, _FORMATS, _FORMER = "format", "formats", "former"
_HISTORY = (_NEXT, _FORMATS, _FORMER)
_MOST_FORMER = 20
"""Number of earlier paths that are known: the target is stored with every step."""


def _planned(target: Target, previous: Target, name: str) -> Target:
    """Return the target of a delivery in the format ``name``, with what earlier targets say of this and other paths."""
    every = list(outputs(previous))
    target = dict(target)
    missing: list[tuple[int, int]] = target.pop(MISSING, [])
    known = next((one.get(_FORMATS, []) for one in every if _goes_on(target, one)), [])
    known = _without_lines(known or [[0, name]], missing) if missing else known
    former = [one for one in every if one["path"] != target["path"]][:_MOST_FORMER]
    return {**target, _NEXT: name, _FORMATS: known, **({_FORMER: former} if former else {})}


def _without_lines(known: list[Any], missing: list[tuple[int, int]]) -> list[Any]:
    """Return the formats with stretches of ``NO_FORMAT`` where lines are missing."""
    for begin, end in missing:
        before = next((name for _, name in reversed(known) if name != NO_FORMAT), NO_FORMAT)
        known = [*takewhile(lambda one, begin=begin: one[0] < begin, known), [begin, NO_FORMAT], [end, before]]
    return known


def outputs(target: Target) -> Iterator[Target]:
    """Yield the current output of a target, then the earlier ones at other paths, the newest first.

    Their paths are relative to the project, if they are inside it, or whole.
    """
    if "path" in target:
        yield {key: value for key, value in target.items() if key != _FORMER}
    yield from target.get(_FORMER, [])


def _placed(target: Target, root: str) -> Target:
    """Return a target whose paths inside the project are relative to it; earlier versions stored whole ones."""
    own = {"path": storage.inside(target["path"], root)} if "path" in target else {}
    former = {_FORMER: [_placed(one, root) for one in target[_FORMER]]} if _FORMER in target else {}
    return {**target, **own, **former}


def _goes_on(target: Target, previous: Target) -> bool:
    """Return whether it is the same path in the same layout."""
    return previous.get("path") == target["path"] and ("length" in previous) == ("base" in target)


def _published(target: Target, delivery: Delivery) -> Target:
    """Return the target after a delivery, with the place where its format begins unless that is the last one's.

    A place is a byte of an ordered file, or a step of a folder. A target of an older version has no formats.
    """
    if _NEXT not in delivery.target:
        return target
    place, name = delivery.target.get("base", delivery.step), delivery.target[_NEXT]
    known = list(takewhile(lambda one: one[0] < place, delivery.target[_FORMATS]))
    if not known or known[-1][1] != name:
        known.append([place, name])
    former: dict[str, Any] = {key: delivery.target[key] for key in (_FORMER,) if key in delivery.target}
    return {**{key: value for key, value in target.items() if key != _NEXT}, _FORMATS: known, **former}


def stretches(target: Target, start: int, end: int) -> list[tuple[int, str]]:
    """Return where each format in ``[start, end)`` ends, and its name; empty if they are not known.

    What was there before the first known format counts as that format.
    """
    known = target.get(_FORMATS, [])
    ends = [*(place for place, _ in known[1:]), end]
    every = ((begin, upto, name) for (begin, name), upto in zip(known, ends, strict=False))
    return [
        (min(upto, end), name)
        for number, (begin, upto, name) in enumerate(every)
        if start < upto and (number == 0 or begin < end)
    ]

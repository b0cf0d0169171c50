"""One ordered file as a destination."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conduit_dagster.connectors.base import ConnectorContext, Delivery, Target
from conduit_dagster.connectors.file.layout import Layout
from conduit_dagster.connectors.file.mending import mend
from conduit_dagster.connectors.file.positioned import write_delivery
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state import storage


class _Span(NamedTuple):
    """A range of the file, and the bytes that belong there."""

    at: int
    bytes: int
    sha256: str


_LINE_END = hashlib.sha256(b"\n").hexdigest()


class OrderedFile(Layout):
    """Appends each delivery after the last, so that a repeat rewrites the same bytes in the same place.

    With at-most-once a delivery is never repeated: its place stays its own, and line ends are written where its bytes
    are missing before the next one is prepared.
    """

    def __init__(self, path: Path, context: ConnectorContext, adopt: bool) -> None:
        super().__init__(path, context)
        self._adopt = adopt
        self._whole: Target | None = None
        """The target after the last delivery that this instance wrote to its end: nothing of it is to be mended."""

    def check(self) -> None:
        """Makes the folder and tries to open the file for writing, changing nothing of it."""
        self._opened()

    def _opened(self) -> os.stat_result:
        """The file as it is, made where there was none."""
        with self._naming_errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                found = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            self._require_regular(found)
            self._sync_entry(found.st_ino)
            return found

    def _require_regular(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise FatalError(
                f"{self._path} is not a regular file",
                code="file.not_regular",
                place=str(self._path),
                fix="name a file; devices and pipes can't keep an order across restarts",
            )

    def target(self, previous: Target | None) -> Target:
        """Inode and base length, stored before anything is published (DELIVERY.md, Destinations)."""
        if previous and "length" not in previous:
            previous = None  # it was a folder then
        if previous and not self._path.exists() and not self._adopt:
            raise self._changed("was removed", previous["length"])
        found = self._opened()
        with self._naming_errors():
            size = self._end_of(previous, found) if previous else found.st_size
            gap = 0 if _ends_a_line(self._path, size) else 1
        return {"path": str(self._path), "inode": found.st_ino, "base": size + gap, "gap": gap}

    def _end_of(self, previous: Target, found: os.stat_result) -> int:
        """Where the last delivery ends, mended where it may be broken; with ``adopt``, where a changed file ends."""
        change = _change(previous, found)
        if change is not None:
            if not self._adopt:
                raise self._changed(change, previous["length"])
            return found.st_size
        # mended before the next delivery is prepared, so that a file is never shorter than its last delivery's base,
        # and in that delivery's own range only, so that a deposed owner's late mending can't meet later bytes
        if "base" in previous and (found.st_size < previous["length"] or previous != self._whole):
            mend(self._path, previous)
        return previous["length"]

    def _changed(self, what: str, after: int) -> FatalError:
        return FatalError(
            f"{self._path} {what} since this pipeline last wrote to it",
            code="file.changed",
            place=f"{self._path}, after byte {after}",
            fix="put the file back as it was, or set if-changed: adopt to go on after what is there",
        )

    def holds(self, delivery: Delivery) -> bool:
        """Whether the bytes are there, whoever wrote them."""
        return self._is_same(delivery) and all(
            storage.digest(str(self._path), span.at, span.bytes) == (span.bytes, span.sha256)
            for span in _spans(delivery)
        )

    def _is_same(self, delivery: Delivery) -> bool:
        return self._path.exists() and self._path.stat().st_ino == delivery.target["inode"]

    def retarget(self, delivery: Delivery) -> Target | None:
        """With ``if-changed: adopt``, the end of what is there now, where the delivery can't go to its own place."""
        if not self._adopt or (self._is_same(delivery) and self._fits(delivery)):
            return None
        return self.target(None)

    def publish(self, delivery: Delivery) -> Target:
        """Positioned writes at the base, so that recovery and zombies write the same bytes; durable when it returns."""
        base = delivery.target["base"]
        with self._naming_errors():
            if not self._is_same(delivery) or not self._is_ours(delivery):
                raise self._changed("was changed by somebody else", base)
            with self._path.open("r+b", buffering=0) as file:
                if os.fstat(file.fileno()).st_ino != delivery.target["inode"]:
                    raise self._changed("was replaced by another file", base)
                write_delivery(file.fileno(), delivery, self._midway)
                os.fsync(file.fileno())
        self._whole = self.expected(delivery)
        return self._whole

    def _midway(self) -> None:
        reached("mid-publish", self._context.pipeline)

    def settled(self, delivery: Delivery) -> Target:
        """The file after the delivery, synced: whoever wrote it may have died before that."""
        storage.sync(str(self._path))
        return self.expected(delivery)

    def expected(self, delivery: Delivery) -> Target:
        """The file after the delivery. With at-most-once it may turn out shorter, and so names what belongs where."""
        length = delivery.target["base"] + delivery.bytes
        after: Target = {"path": str(self._path), "inode": delivery.target["inode"], "length": length}
        if self._context.strategy == "at-most-once":
            after["base"] = delivery.target["base"] - delivery.target["gap"]
            after["parts"] = [[span.bytes, span.sha256] for span in _spans(delivery)]
        return after

    def _fits(self, delivery: Delivery) -> bool:
        base, gap = delivery.target["base"], delivery.target["gap"]
        return base - gap <= self._path.stat().st_size <= base + delivery.bytes

    def _is_ours(self, delivery: Delivery) -> bool:
        """What lies behind the base is a beginning of this delivery, or nothing yet; foreign bytes are never lost."""
        if not self._fits(delivery):
            return False
        at, size = delivery.target["base"], self._path.stat().st_size
        if delivery.target["gap"] and b"".join(storage.chunks(str(self._path), at - 1, 1)) not in (b"", b"\n", b"\0"):
            return False
        for part in delivery.parts:
            length = min(part.bytes, size - at)
            if length <= 0:
                break
            staged = storage.join(delivery.staging, part.name)
            if not _is_beginning(str(self._path), at, staged, length):
                return False
            at += part.bytes
        return True


def _change(previous: Target, found: os.stat_result) -> str | None:
    """What somebody else did to the file. Only the range of a delivery that is never repeated may be cut short."""
    if found.st_ino != previous["inode"]:
        return "was replaced by another file"
    if not previous.get("base", previous["length"]) <= found.st_size <= previous["length"]:
        return f"is {found.st_size} bytes long, not {previous['length']}"
    return None


def _spans(delivery: Delivery) -> Iterator[_Span]:
    """All that a delivery writes, in order: the line end where one was missing, then its parts."""
    at = delivery.target["base"]
    if delivery.target["gap"]:
        yield _Span(at - 1, 1, _LINE_END)
    for part in delivery.parts:
        yield _Span(at, part.bytes, part.sha256)
        at += part.bytes


def _ends_a_line(path: Path, size: int) -> bool:
    return size == 0 or b"".join(storage.chunks(str(path), size - 1, 1)) == b"\n"


def _is_beginning(path: str, at: int, staged: str, length: int) -> bool:
    """Whether the bytes are the staged ones; where a power cut left a hole, they may be zero as well."""
    pieces = zip(storage.chunks(path, at, length), storage.chunks(staged, 0, length), strict=False)
    return all(a == b or all(x in (0, y) for x, y in zip(a, b, strict=True)) for a, b in pieces)

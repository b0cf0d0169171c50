"""Landing of a Spark data source: its rows as Parquet files, which gives positions to rows without any.

A landing is a folder with one list per batch: ``00000001.json`` and so on, each created atomically and never changed.
Only files that a list names have landed, so that a crash during landing leaves nothing that counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.file.file_state import FoundFile
from conduit_dagster.connectors.parquet.parquet_folder import Listed, Wanted, listed_whole
from conduit_dagster.connectors.parquet.parquet_position import NO_PARQUETS, FinishedParquets
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk.staging import discard_folder

_SUFFIX: Final = ".json"
_REMOVED: Final = ".removed"
_ACKED: Final = ".acked-"
_LISTED_FOR: Final = 10.0
"""Seconds after which the folder is listed again, for what other processes did in it."""


class LandedFile(msgspec.Struct, frozen=True):
    """A file of a batch."""

    name: str
    """Path relative to the landing."""
    bytes: int


class LandedBatch(msgspec.Struct, frozen=True):
    """Files that landed together, in reading order."""

    number: int
    at: float
    """Time of landing, in seconds since 1970."""
    files: tuple[LandedFile, ...]
    folder: str = ""
    """Folder that belongs to this batch only."""
    sink: int = -1
    """For a stream: the last batch of Spark's sink that it contains."""


def number_of(name: str) -> int:
    """Return the batch number in a file name from :meth:`Landing.files`; 0 for an empty name."""
    return int(name.partition("-")[0] or 0)


class Landing:
    """Landed batches of one source.

    A day of a stream may have tens of thousands: the folder is listed now and then, not for every step. What this
    process lands and removes in the meantime is applied to the last listing.
    """

    ordered = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.RLock()  # the lag is asked for in another thread
        self._listed_at = -math.inf
        self._names = set[str]()
        self._known: dict[str, LandedBatch] = {}
        self._files: dict[str, list[FoundFile]] = {}
        self._notes: dict[str, float] = {}

    def batches(self) -> list[LandedBatch]:
        """Return the existing batches, in order."""
        with self._lock:
            self._look()
            return list(self._known.values())

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._listed_at < _LISTED_FOR:
            return
        names = {name for name in storage.files(self.url) if name[0].isdigit()}
        lists = sorted(name for name in names if name.endswith(_SUFFIX))
        # a list never changes
        known = {name: self._known.get(name) or self._read(name) for name in lists}
        self._files = {name: self._files.get(name) or self._found(batch) for name, batch in known.items()}
        self._names, self._known, self._listed_at = names, known, now

    def _read(self, name: str) -> LandedBatch:
        with storage.open_read(storage.join(self.url, name)) as file:
            return msgspec.json.decode(file.read(), type=LandedBatch)

    def _found(self, batch: LandedBatch) -> list[FoundFile]:
        return [
            FoundFile(storage.join(self.url, file.name), f"{batch.number:08d}-{place:06d}", 0, file.bytes, 0)
            for place, file in enumerate(batch.files)
        ]

    def files(
        self, wanted: Wanted = None, finished: FinishedParquets = NO_PARQUETS, known: Collection[str] = ()
    ) -> Listed:
        """Return the files of all batches, in reading order; their names begin with their batch's number."""
        with self._lock:
            self._look()
            found = [file for files in self._files.values() for file in files]
        return listed_whole(found if wanted is None else [file for file in found if wanted(file.name)])

    def forget(self) -> None:
        """List the folder again in the next scan."""
        self._listed_at = -math.inf

    def next_number(self) -> int:
        """Return the number of the next batch. Call it before any work for that batch, see :meth:`land`."""
        return max((batch.number for batch in self.batches()), default=0) + 1

    def land(self, number: int, names: Sequence[str], folder: str = "", sink: int = -1) -> None:
        """Make a batch of these files, named relative to the landing. They are durable before it names them.

        Raises ``TransientError`` if a batch with that number exists: of two owners that did the same work, only one's
        counts, whichever of them was frozen meanwhile.
        """
        files = tuple(LandedFile(name, self._synced(name)) for name in names)
        name, batch = f"{number:08d}{_SUFFIX}", LandedBatch(number, time.time(), files, folder, sink)
        if not storage.put_new(storage.join(self.url, name), msgspec.json.encode(batch)):
            self.forget()
            raise TransientError(
                f"batch {number} of {self.url} was landed by another process in the meantime",
                code="spark.landed_twice",
                fix="run again; what that process landed is read",
            )
        with self._lock:
            self._names.add(name)
            self._known[name], self._files[name] = batch, self._found(batch)

    def _synced(self, name: str) -> int:
        url = storage.join(self.url, name)
        storage.sync(url)
        storage.sync(url.rpartition("/")[0])
        return storage.size(url) or 0

    def acked(self, upto: int, generation: int, keep: float) -> None:
        """Record that batches before number ``upto`` are acked; remove those acked at least ``keep`` seconds ago.

        Keeps the newest one: its number determines the next. An ack of an older generation changes nothing: a thawed
        owner removes nothing that is being read again.
        """
        with self._lock:
            self._look()
            try:
                self._acked(upto, generation, keep)
            except BaseException:
                self.forget()  # what was done is not known
                raise

    def _acked(self, upto: int, generation: int, keep: float) -> None:
        if self._is_older(generation):
            return
        due = list[str]()
        for name, batch in list(self._known.items())[:-1]:
            if batch.number >= upto:
                break
            at = self._acked_at(batch, generation)
            if time.time() - at >= keep:
                due.append(name)
        if due:
            # a thawed owner sees the notes of the next one before it removes anything
            self.forget()
            self._look()
            if self._is_older(generation):
                return
        for name in due:
            self._rename(name, name.removesuffix(_SUFFIX) + _REMOVED)
        self._remove_renamed()

    def _rename(self, name: str, removed: str) -> None:
        # renamed to removed first: if the removal is killed, the next one finishes it
        if name in self._known:
            storage.rename(storage.join(self.url, name), storage.join(self.url, removed))
            del self._known[name], self._files[name]
            self._names.discard(name)
            self._names.add(removed)

    def _is_older(self, generation: int) -> bool:
        return any(int(name.partition(_ACKED)[2]) > generation for name in self._names if _ACKED in name)

    def _acked_at(self, batch: LandedBatch, generation: int) -> float:
        """Return when it was first acked in this generation; stored in a file, since another process may continue."""
        name = f"{batch.number:08d}{_ACKED}{generation}"
        if name not in self._notes:
            url = storage.join(self.url, name)
            if name not in self._names:
                storage.put_new(url, str(time.time()).encode())
                self._names.add(name)
            with storage.open_read(url) as file:
                self._notes[name] = float(file.read())
        return self._notes[name]

    def _remove_renamed(self) -> None:
        """Finish the removal of all batches whose lists are renamed to removed."""
        removed = {name.removesuffix(_REMOVED): name for name in self._names if name.endswith(_REMOVED)}
        if not removed:
            return
        notes: dict[str, list[str]] = {number: [] for number in removed}
        for name in self._names:
            number, is_note, _ = name.partition(_ACKED)
            if is_note and number in notes:
                notes[number].append(name)
        for number, name in removed.items():
            self._remove(name, notes[number])

    def _remove(self, name: str, notes: Sequence[str]) -> None:
        """Remove the files of a batch whose list was renamed to removed, and finally that list."""
        batch = self._read(name)
        for file in batch.files:
            storage.remove(storage.join(self.url, file.name))
        if batch.folder:
            discard_folder(storage.join(self.url, batch.folder))
        for one in (*notes, name):
            storage.remove(storage.join(self.url, one))
            self._names.discard(one)
            self._notes.pop(one, None)

    def clean(self, prefix: str) -> None:
        """Remove folders with this prefix that no batch names.

        Call it right after landing a batch: an owner still at work on an earlier one comes too late for its number.
        """
        named = {batch.folder for batch in self.batches()}
        for name in storage.folders(self.url):
            if name.startswith(prefix) and name not in named:
                discard_folder(storage.join(self.url, name))


learn(LandedBatch, LandedFile)

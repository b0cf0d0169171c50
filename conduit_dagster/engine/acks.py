"""Handled records of a delivery, with acks in any order, and the file that keeps them while a job runs."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import NamedTuple

import msgspec

from conduit_dagster import storage
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Nack
from conduit_dagster.sdk.staging import discard_file


class AckOrigin(NamedTuple):
    """Origin of a delivered record."""

    place: int
    """Index of the record in the delivery."""
    source: str
    ordinal: int
    """Index of its source record in the step's range."""


class AckFront:
    """The contiguous run of handled records at the front of a delivery."""

    def __init__(self) -> None:
        self._waiting: deque[AckOrigin] = deque()
        self._done: set[int] = set()
        self.last: AckOrigin | None = None
        """The last record of the run; None when it is empty."""

    def sent(self, origin: AckOrigin) -> None:
        """Register the next record, in order."""
        self._waiting.append(origin)

    def handled(self, place: int) -> None:
        """Mark a record as handled; no effect if it already was, or was never sent."""
        if not self._waiting or place < self._waiting[0].place:
            return
        self._done.add(place)
        while self._waiting and self._waiting[0].place in self._done:
            self.last = self._waiting.popleft()
            self._done.discard(self.last.place)

    @property
    def next(self) -> AckOrigin | None:
        """The first unhandled record; None when all sent records are handled."""
        return self._waiting[0] if self._waiting else None

    @property
    def unhandled(self) -> int:
        """Number of records that were sent and are not handled yet."""
        return len(self._waiting) - len(self._done)


class Acked(msgspec.Struct):
    """Handled part of a delivery. Offsets advance by it, and never move back (CASES C1, C12, C13)."""

    handled: int
    """Number of handled records from the front of the delivery."""
    next: tuple[str, int] | None = None
    """Source and ordinal of the first unhandled record; None if every sent record is handled."""
    namespaces: dict[str, tuple[int, str, int]] = {}
    """Namespace to its last record before its first unhandled one: place, source, ordinal."""


class Acks:
    """Acks and nacks of single records: late, repeated or out of order. Another thread may read the state."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._all = AckFront()
        self._by_namespace: dict[str, AckFront] = {}
        self._namespace: dict[int, str] = {}
        self.nacks: dict[int, Nack] = {}
        self.received = 0
        """Number of acked records, in any order, without those that were refused."""
        self._frozen: Acked | None = None
        self._lock = threading.RLock()

    def sent(self, place: int, namespace: str, source: str, ordinal: int) -> None:
        """Register a record that is being sent. Call in order of place."""
        with self._lock:
            origin = AckOrigin(place, source, ordinal)
            self._all.sent(origin)
            self._by_namespace.setdefault(namespace, AckFront()).sent(origin)
            self._namespace[place] = namespace

    def ack(self, place: int) -> None:
        """Mark a record as received by the destination."""
        with self._lock:
            self.received += self._handled(place)

    def _handled(self, place: int) -> bool:
        """Mark a record as handled; return False if it was, or was never sent."""
        namespace = self._namespace.pop(place, None)
        if namespace is None:
            return False
        self._all.handled(place)
        self._by_namespace[namespace].handled(place)
        return True

    def ack_up_to(self, place: int) -> None:
        """Ack this record and every record before it."""
        with self._lock:
            while (first := self._all.next) is not None and first.place <= place:
                self.ack(first.place)

    def nack(self, place: int, nack: Nack) -> None:
        """Mark a record as refused. Nothing after the first nack counts as handled until the nack is recorded."""
        with self._lock:
            if place in self._namespace:
                self._frozen = self._frozen or self.acked()
                self.nacks[place] = nack
                self._handled(place)

    def acked(self) -> Acked:
        """Return the handled part of the delivery, including nacked records."""
        with self._lock:
            last, following = self._all.last, self._all.next
            named: dict[str, tuple[int, str, int]] = {
                name: front.last for name, front in self._by_namespace.items() if front.last
            }
            handled = following.place if following else (self._first if last is None else last.place + 1)
            return Acked(handled, (following.source, following.ordinal) if following else None, named)

    def safe(self) -> Acked:
        """Return the part that may be made durable before the nacks are recorded."""
        with self._lock:
            return self._frozen or self.acked()

    @property
    def unhandled(self) -> int:
        """Number of records that were sent and are neither acked nor nacked."""
        return self._all.unhandled


class AckFile:
    """Writer of the current acks, beside the staged parts while the job runs: one small file, replaced each time.

    A killed process loses at most the acks of one interval; those records are sent again (CASES C4).
    """

    def __init__(self, acks: Acks, folder: str, token: str, interval: float) -> None:
        self._acks, self._folder, self._token, self._interval = acks, folder, token, interval
        self._number = 0
        self._last: int | None = None
        """Number of the newest durable file."""
        self._written: Acked | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acks", daemon=True)

    def __enter__(self) -> AckFile:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self._flush()
            except OSError:
                continue  # records whose acks are not durable are sent again; the job itself continues

    def _flush(self) -> None:
        acked = self._acks.safe()
        if acked == self._written:
            return
        number, self._number = self._number, self._number + 1
        file = storage.NewFile(self._url(number))
        try:
            file.write(msgspec.json.encode(acked))
            file.finish()
        except OSError:
            # the next try has another name; without this file the one before counts
            file.abort()
            storage.remove(self._url(number))
            raise
        if self._last is not None:
            discard_file(self._url(self._last))
        self._last, self._written = number, acked

    def _url(self, number: int) -> str:
        return storage.join(self._folder, f"acks-{self._token}-{number:08d}.json")


def newest(folder: str, token: str = "") -> list[Acked]:
    """Return the newest durable acks of each job of a delivery, or only those of the job with this token."""
    names = sorted((name for name in storage.files(folder) if name.startswith(f"acks-{token}")), reverse=True)
    found: dict[str, Acked] = {}
    for name in names:
        job = name.rpartition("-")[0]
        # a kill may leave a torn file behind the newest whole one
        if job not in found and (acked := _read(storage.join(folder, name))) is not None:
            found[job] = acked
    return list(found.values())


def _read(url: str) -> Acked | None:
    try:
        return msgspec.json.decode(b"".join(storage.chunks(url)), type=Acked)
    except (OSError, msgspec.DecodeError):
        return None  # replaced by a newer file, or torn: its acks never counted


learn(Acked)

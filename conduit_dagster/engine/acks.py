"""Which records of a delivery are handled, while acks come in any order. Pure."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import msgspec

from conduit_dagster.record import Nack


class Origin(NamedTuple):
    """Where a delivered record comes from."""

    place: int
    """Its place in the delivery."""
    source: str
    ordinal: int
    """Its source record's place in the step's range."""


class Front:
    """The records before the first one that is not handled."""

    def __init__(self) -> None:
        self._waiting: deque[Origin] = deque()
        self._done: set[int] = set()
        self.last: Origin | None = None
        """The last one of them; None where there is none."""

    def sent(self, origin: Origin) -> None:
        """The next record, in order."""
        self._waiting.append(origin)

    def handled(self, place: int) -> None:
        """A record is handled; one that already is, or was never sent, changes nothing."""
        if not self._waiting or place < self._waiting[0].place:
            return
        self._done.add(place)
        while self._waiting and self._waiting[0].place in self._done:
            self.last = self._waiting.popleft()
            self._done.discard(self.last.place)

    @property
    def next(self) -> Origin | None:
        """The first one that is not handled; None where all that were sent are."""
        return self._waiting[0] if self._waiting else None

    @property
    def unhandled(self) -> int:
        """How many were sent and are not handled."""
        return len(self._waiting) - len(self._done)


class Acked(msgspec.Struct):
    """What is handled of a delivery. Offsets move by it, and never back (CASES C1, C12, C13)."""

    handled: int
    """Records from the front of the delivery."""
    next: tuple[str, int] | None = None
    """Source and ordinal of the first record that is not handled; None where none was sent."""
    namespaces: dict[str, tuple[int, str, int]] = {}
    """Namespace to the last record before its own first one that is not handled: place, source, ordinal."""


def _plain(origin: Origin) -> tuple[int, str, int]:
    return origin.place, origin.source, origin.ordinal


class Acks:
    """Takes acks and nacks of single records, late, twice and in any order; a second thread may ask meanwhile."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._all = Front()
        self._by_namespace: dict[str, Front] = {}
        self._namespace: dict[int, str] = {}
        self.nacks: dict[int, Nack] = {}
        self._frozen: Acked | None = None
        self._lock = threading.RLock()

    def sent(self, place: int, namespace: str, source: str, ordinal: int) -> None:
        """A record is on its way; in order of their places."""
        with self._lock:
            origin = Origin(place, source, ordinal)
            self._all.sent(origin)
            self._by_namespace.setdefault(namespace, Front()).sent(origin)
            self._namespace[place] = namespace

    def ack(self, place: int) -> None:
        """The destination has it."""
        with self._lock:
            namespace = self._namespace.pop(place, None)
            if namespace is not None:
                self._all.handled(place)
                self._by_namespace[namespace].handled(place)

    def ack_up_to(self, place: int) -> None:
        """The destination has it and every one before it."""
        with self._lock:
            for known in [p for p in self._namespace if p <= place]:
                self.ack(known)

    def nack(self, place: int, nack: Nack) -> None:
        """The destination refuses it. Nothing behind the first one counts as handled until that is recorded."""
        with self._lock:
            if place in self._namespace:
                self._frozen = self._frozen or self.acked()
                self.nacks[place] = nack
                self.ack(place)

    def acked(self) -> Acked:
        """What is handled, nacked records among them."""
        with self._lock:
            last, following = self._all.last, self._all.next
            named = {name: _plain(front.last) for name, front in self._by_namespace.items() if front.last}
            handled = following.place if following else (self._first if last is None else last.place + 1)
            return Acked(handled, (following.source, following.ordinal) if following else None, named)

    def safe(self) -> Acked:
        """What may be made durable before the nacks are recorded."""
        with self._lock:
            return self._frozen or self.acked()

    @property
    def unhandled(self) -> int:
        """How many were sent and are neither acked nor nacked."""
        return self._all.unhandled

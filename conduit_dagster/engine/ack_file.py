"""Acks of a running job, written durably at an interval (reference 4: 1 s by default) and read back by the driver."""

from __future__ import annotations

import threading
from types import TracebackType

import msgspec

from conduit_dagster import storage
from conduit_dagster.engine.acks import Acked, Acks
from conduit_dagster.msgspec_warmup import learn


class AckFile:
    """Writer of the current acks, next to the staged parts while the job runs: one small file, replaced each time.

    A killed process loses at most the acks of one interval; those records are sent again (CASES C4).
    """

    def __init__(self, acks: Acks, folder: str, token: str, interval: float) -> None:
        self._acks, self._folder, self._token, self._interval = acks, folder, token, interval
        self._number = 0
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
        file = storage.NewFile(self._url(self._number))
        file.write(msgspec.json.encode(acked))
        file.finish()
        if self._number:
            storage.remove(self._url(self._number - 1))
        self._number, self._written = self._number + 1, acked

    def _url(self, number: int) -> str:
        return storage.join(self._folder, f"acks-{self._token}-{number:08d}.json")


def newest(folder: str, token: str = "") -> list[Acked]:
    """Return the newest durable acks of each job of a delivery, or only those of the job with this token."""
    names = [name for name in storage.files(folder) if name.startswith(f"acks-{token}")]
    last = {name.rpartition("-")[0]: name for name in sorted(names)}
    return [acked for name in last.values() if (acked := _read(storage.join(folder, name))) is not None]


def _read(url: str) -> Acked | None:
    try:
        return msgspec.json.decode(b"".join(storage.chunks(url)), type=Acked)
    except (OSError, msgspec.DecodeError):
        return None  # replaced by a newer file, or torn: its acks never counted


learn(Acked)

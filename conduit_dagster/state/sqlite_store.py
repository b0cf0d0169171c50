"""SQLite stores: their connections and transactions, and their file.

It is readable by its user only, and the same file for as long as the store is in use.
"""

from __future__ import annotations

import atexit
import errno
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import event

from conduit_dagster.private_home import PRIVATE_FILE, SHARED_FILE, private_folder
from conduit_dagster.recovery.errors import FatalError

_SMALLEST = 512
"""Size in bytes of the smallest SQLite database; the file of an opened store is never shorter."""
_ATTEMPTS = 3
ACCEPT = "if all data may be read and delivered again: conduit-dagster run --accept-new-state"
WITHOUT_OLD = "a file of SQLite without the old -wal and -shm files beside it"
"""How to put a backup back: SQLite would write what an old ``-wal`` file holds into it, and damage it."""


READS = "conduit_reads"
"""Execution option: whether a transaction only reads."""
BUSY = "conduit_busy_ms"
"""Execution option: how long a transaction waits for SQLite's lock, in milliseconds."""
_BUSY_MS = 30_000
_WAL_SECONDS = 5


class FileIdentity(NamedTuple):
    """Device and inode of a file."""

    device: int
    inode: int


def sqlite_file(url: sa.URL) -> Path | None:
    """Return the file of an SQLite store; None for other databases, in-memory ones, and ``file:`` URIs."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(os.path.abspath(name))  # noqa: PTH100  # as SQLAlchemy does: resolve() would follow links


def create_file(path: Path, private: bool) -> None:
    """Create the file and its folder if missing, for their user only or, if not ``private``, as the umask says.

    SQLite gives its ``-wal`` and ``-shm`` files the same mode.

    Raises ``OSError``, also for a file that can't be written. One that exists is never opened here: closing it again
    would end the locks of all this process's connections to it (POSIX), and another process, taking itself for the
    last one, would delete the ``-wal`` file under them. What they wrote from then on would be lost.
    """
    if private:
        private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    mode = PRIVATE_FILE if private else SHARED_FILE
    file = os.path.realpath(path)  # a link may lead to a file that is not there yet
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    if not os.access(file, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


class DiskTrouble(NamedTuple):
    """What keeps the store's file from being written, which SQLite's own errors don't tell."""

    what: str
    fix: str


_ROOM = 256 << 10
"""Free bytes below which the disk counts as full: a connection needs a ``-shm`` file, and a commit some pages."""


def disk_trouble(url: sa.URL) -> DiskTrouble | None:
    """Return whether the file's disk is full, or mounted read-only; None otherwise, and for other databases."""
    file = sqlite_file(url)
    try:
        found = None if file is None else os.statvfs(file.parent)
    except OSError:
        return None
    if found is None:
        return None
    if found.f_flag & os.ST_RDONLY:
        return DiskTrouble("its file system is read-only", "mount it for writing; reading takes a writable folder too")
    if found.f_bavail * found.f_frsize < _ROOM:
        return DiskTrouble("its disk is full", "free some space on it")
    return None


def replaced(place: str, what: str) -> FatalError:
    """Return the error for a store that is no longer the one that was opened."""
    return FatalError(
        f"the state store {what} while it was in use; expected the one that this process opened."
        " Nothing more is published",
        code="state.replaced",
        place=place,
        fix=f"put it back as it was and run again, or restore a backup, {WITHOUT_OLD}; {ACCEPT}",
    )


def configure_sqlite(engine: sa.Engine) -> None:
    """Set up the connections and transactions of a new engine, and the guard of its file, if it has one."""
    event.listen(engine, "connect", _configure)
    file = sqlite_file(engine.url)
    if file is None:
        event.listen(engine, "begin", _begin)
    else:
        _StoreFile(engine, file)
        _engines.add(engine)


_engines: WeakSet[sa.Engine] = WeakSet()


@atexit.register
def _close() -> None:
    """Close the stores' connections: the last one of all processes writes the ``-wal`` file's content into the store's.

    Otherwise a copy of the store's file alone would lack the newest transactions, or all of them.
    """
    for engine in list(_engines):
        engine.dispose()


def _configure(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # we issue BEGIN ourselves: the driver's own would start read transactions
    cursor = connection.cursor()
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _use_wal(cursor)
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """Switch to WAL, with retries: if several processes open a new file, SQLite refuses all but one at once."""
    until = time.monotonic() + _WAL_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _begin(connection: sa.Connection) -> None:
    # two writers must conflict at BEGIN, not after one has read data that the other changes
    options = connection.get_execution_options()
    busy = int(options.get(BUSY, _BUSY_MS))
    if connection.info.get(BUSY) != busy:  # cached with the driver's connection, to which the setting applies
        connection.exec_driver_sql(f"PRAGMA busy_timeout={busy}").close()
        connection.info[BUSY] = busy
    connection.exec_driver_sql("BEGIN" if options.get(READS, False) else "BEGIN IMMEDIATE")


class _StoreFile:
    """Guard of one engine's file: its connections open no other file, and no transaction goes to a lost one."""

    def __init__(self, engine: sa.Engine, path: Path) -> None:
        self._path, self._place = path, engine.url.render_as_string()
        self._opened: FileIdentity | None = None
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "begin", self._begin)
        # a transaction during which the file is replaced would be lost with the old file
        event.listen(engine, "commit", self._require_same)

    def _connect(self, _dialect: Any, _record: Any, args: list[Any], settings: dict[str, Any]) -> sqlite3.Connection:
        # mode=rw: a missing file must not be created anew
        for _ in range(_ATTEMPTS):
            before = self._found()
            made = sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True, **settings)
            if before is not None and before == self._found():
                break
            made.close()
        else:
            raise replaced(self._place, "was replaced by another file")
        if self._opened is None:
            self._opened = before
        elif before != self._opened:
            made.close()
            raise replaced(self._place, "was replaced by another file")
        return made

    def _found(self) -> FileIdentity | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if self._opened is None:
                return None
            raise replaced(self._place, "was deleted") from None
        return FileIdentity(found.st_dev, found.st_ino)

    def _begin(self, connection: sa.Connection) -> None:
        self._require_same()
        _begin(connection)

    def _require_same(self, _connection: Any = None) -> None:
        """Raise ``FatalError`` (``state.replaced``) if the path leads to another file, to none, or to an empty one."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise replaced(self._place, "was deleted") from None
        except OSError:
            return  # the statement itself will fail, as an outage
        if FileIdentity(found.st_dev, found.st_ino) != self._opened:
            raise replaced(self._place, "was replaced by another file")
        if found.st_size < _SMALLEST:
            raise replaced(self._place, "was emptied")

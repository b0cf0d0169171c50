"""Files that coordinate the shared server's processes: one folder, for its user only. Standard library only.

``lock`` is held while a server is started or stopped, ``server.json`` holds its address and token, and each open
session holds a lock on its own file in ``sessions``: the system releases it however the process ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conduit_dagster.processes import is_alive, try_lock
from conduit_dagster.recovery.errors import TransientError, from_os_error

_TICK = 0.1


@dataclass(frozen=True, slots=True)
class SparkServer:
    """A started server. ``conf`` holds digests: a value may be a secret."""

    pid: int
    started: str
    port: int
    token: str = field(repr=False)
    since: float
    spark: str
    python: str
    conf: dict[str, str]
    keeper: int = 0
    """Process of its monitor."""
    keeper_started: str = ""
    package: str = ""
    """The folder from which its workers import this package; empty in the record of an older version."""

    @property
    def url(self) -> str:
        """The server's URL, without the token."""
        return f"sc://localhost:{self.port}"

    def is_alive(self) -> bool:
        """Return whether the server's process is running."""
        return is_alive(self.pid, self.started)

    def is_monitored(self) -> bool:
        """Return whether the server's monitor is running."""
        return is_alive(self.keeper, self.keeper_started)


class ServerFiles:
    """The folder of a project's server."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home.absolute() / "spark"
        self.conf = self.folder / "server.conf"
        self.log = self.folder / "server.log"
        self.record = self.folder / "server.json"
        self._lock = self.folder / "lock"
        self._sessions = self.folder / "sessions"

    def make(self) -> None:
        """Create the folder, readable by its user only."""
        try:
            self.folder.parent.mkdir(0o700, parents=True, exist_ok=True)
            self.folder.mkdir(exist_ok=True)
            self.folder.chmod(0o700)
            self._sessions.mkdir(0o700, exist_ok=True)
            for file in (self.log, self._lock):
                os.close(_private(str(file), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
        except OSError as error:
            raise self._unusable(error, "needs a folder") from error

    def _unusable(self, error: OSError, what: str) -> TransientError:
        found = from_os_error(error, f"the shared Spark server {what}")
        if not isinstance(error, PermissionError) or not self._is_others():
            return found
        return TransientError(
            "the project's shared Spark server is another user's, and serves that user only",
            code=found.code,
            place=str(self.folder),
            fix="run it as that user, or with a Spark of its own: spark.url: local[*], or CONDUIT_SPARK_URL='local[*]'",
        )

    def _is_others(self) -> bool:
        try:
            return self.folder.stat().st_uid != os.geteuid()
        except OSError:
            return False

    @property
    def has_log(self) -> bool:
        """Return whether a server has written its log; the empty file is made with the folder."""
        try:
            return self.log.stat().st_size > 0
        except OSError:
            return False

    def read(self) -> SparkServer | None:
        """Return the last started server, running or not; ``None`` if the file is missing or damaged.

        Raises ``TransientError`` if it is another user's.
        """
        try:
            known = json.loads(self.record.read_text(encoding="utf-8"))
            names = [one.name for one in fields(SparkServer)]
            # a newer version may write more: its server is compared with what this one needs, never overlooked
            return SparkServer(**{name: known[name] for name in names if name in known})
        except PermissionError as error:
            raise self._unusable(error, "can't be used") from error
        except (OSError, ValueError, TypeError):
            return None

    def is_another(self, before: SparkServer | None) -> bool:
        """Return whether a server was started since :meth:`read` returned ``before``."""
        now = self.read()
        return now is not None and (before is None or before.token != now.token)

    def write(self, server: SparkServer) -> None:
        """Store the server's record. Raises ``OSError``."""
        write_private(self.record, json.dumps(asdict(server)))

    def forget(self, server: SparkServer | None = None) -> None:
        """Delete the record if it is this server's; without a server, any record."""
        if server is not None and self.read() != server:
            return
        try:
            self.record.unlink()
        except (FileNotFoundError, NotADirectoryError):
            pass

    @contextmanager
    def locked(self, seconds: float) -> Generator[None]:
        """Hold the lock for starting and stopping a server. Raises ``spark.server_busy`` after so many seconds."""
        self.make()
        with self._lock.open("ab") as file:
            deadline = time.monotonic() + seconds
            while not try_lock(file):
                if time.monotonic() >= deadline:
                    raise _busy(self.folder)
                time.sleep(_TICK)
            yield

    def hold_session(self, name: str) -> SessionFile:
        """Register an open session until it is released or this process ends. Call it only under the lock.

        Raises ``OSError``.
        """
        self._sweep()
        path = self._sessions / f"{os.getpid()}-{secrets.token_hex(4)}"
        return SessionFile(path, {"pid": os.getpid(), "name": name, "since": time.time()})

    def sessions(self) -> list[dict[str, Any]]:
        """Return the open sessions: pid, name, since."""
        found = [_session(path) for path in self._paths() if _is_held(path)]
        return [one for one in found if one is not None]

    def _sweep(self) -> None:
        """Delete files that killed processes left behind."""
        for path in self._paths():
            if not _is_held(path):
                path.unlink(missing_ok=True)

    def _paths(self) -> Iterator[Path]:
        try:
            yield from sorted(self._sessions.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return


class SessionFile:
    """A file that stays locked as long as a session is open."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        # not inherited by children that exec; the lock ends with this process
        self._file = os.fdopen(_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            with naming(path):
                self._file.write(json.dumps(about).encode())
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Delete and unlock the file: the session is closed."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user can read, atomically. Raises ``OSError``, which names the file."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with naming(path):
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Let an ``OSError`` of the block name the file: one that is raised by a write, as on a full disk, names none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not try_lock(file, shared=True)
    except OSError:
        return False


def _session(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # it is being written, or was just closed
        return {"pid": int(path.name.partition("-")[0]), "name": "", "since": None} if _is_held(path) else None


def _busy(folder: Path) -> TransientError:
    return TransientError(
        "another process is starting or stopping the shared Spark server and does not finish",
        code="spark.server_busy",
        place=str(folder),
        fix="`conduit-dagster spark status` shows it, `conduit-dagster spark stop` ends it",
    )

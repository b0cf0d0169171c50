"""A real PostgreSQL for tests: Debian's if it is installed, otherwise that of the ``pgserver`` package."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from .freezing import frozen
from .server_process import free_port, guard_of

USER = "conduit"
_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "shared_buffers=16MB",
    "wal_level=logical",
    "max_wal_senders=100",
    "max_replication_slots=200",
    "max_connections=200",
    "max_prepared_transactions=10",
    "lc_messages=C",
    # its transactions are open ones of others for whoever waits for those
    "autovacuum=off",
    # each new database is 7 MB of WAL: with a gigabyte of it a start after a crash takes minutes on a busy machine
    "max_wal_size=256MB",
)


def installations() -> list[Path]:
    """Return folders that hold ``initdb`` and ``postgres``, the preferred one first."""
    return [folder for folder in _places() if all((folder / name).exists() for name in ("initdb", "postgres"))]


def _places() -> Iterator[Path]:
    if given := os.environ.get("CONDUIT_TEST_POSTGRES"):  # the folder with another version's programs
        yield Path(given)
    if config := shutil.which("pg_config"):
        yield Path(subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    package = importlib.util.find_spec("pgserver")
    if package is not None and package.origin:
        yield Path(package.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """One server on loopback with its own folder, port and password; call ``close`` at the end.

    As root the server runs as another user, since PostgreSQL refuses to run as root.
    """

    def __init__(self, binaries: Path) -> None:
        self._as = _another_user() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="conduit-postgres-", dir=_reachable_folder()))
        self._binaries = binaries if self._as is None or _is_reachable(binaries) else self._copy_of(binaries)
        self._password = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.settings = list(_SETTINGS)
        """Command-line settings for the next start."""
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Id of the server's main process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has neither been stopped nor ended by itself."""
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, including the password."""
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [part for setting in (f"port={self.port}", *self.settings) for part in ("-c", setting)]
        self._process = self._open([str(self._binaries / "postgres"), "-D", str(self.data), *settings])
        self._guard = guard_of(self._process.pid, signal.SIGINT)
        deadline = time.monotonic() + 200
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.02)

    def stop(self, immediate: bool = True) -> None:
        """Stop the server like a crash, or gracefully; both cut connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            self._process.wait(200)
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server and its connections' processes: requests are neither answered nor refused."""
        with frozen(self.pid, self._children()):
            yield

    def _children(self) -> Iterator[int]:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.pid:
                    yield int(stat.parent.name)

    def close(self) -> None:
        """Stop the server and remove its data."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        """Data directory."""
        return self._folder / "data"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self._password)
        self._log.touch()
        if self._as is not None:
            for path in (self._folder, secret):
                os.chown(path, self._as.pw_uid, self._as.pw_gid)
        options = ("-U", USER, f"--pwfile={secret}", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C")
        # without syncing its first files: durability matters only afterwards
        made = self._open([str(self._binaries / "initdb"), "-D", str(self.data), "--no-sync", *options])
        if made.wait(200) != 0:
            raise RuntimeError(f"initdb failed:\n{self._log.read_text()[-3000:]}")

    @property
    def runs_as(self) -> dict[str, Any]:
        """Arguments of ``Popen`` that run a program in the server's folder as the server's user."""
        uid, gid, groups = (None, None, None) if self._as is None else (self._as.pw_uid, self._as.pw_gid, [])
        return {"cwd": self._folder, "user": uid, "group": gid, "extra_groups": groups}

    def _open(self, command: list[str]) -> subprocess.Popen[Any]:
        with self._log.open("ab") as log:
            # a separate session: Ctrl-C in the terminal is for the tests, which end the server themselves
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **self.runs_as)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _copy_of(self, binaries: Path) -> Path:
        """Return programs that the other user can reach, if the environment is in an inaccessible home."""
        package = binaries.parents[1]
        for folder in (package, package.with_name(f"{package.name}.libs")):
            if folder.exists():
                shutil.copytree(folder, self._folder / "install" / folder.name, symlinks=True)
        return self._folder / "install" / binaries.relative_to(package.parent)


def _another_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _is_reachable(folder: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (folder, *folder.resolve().parents))


def _reachable_folder() -> str:
    given = tempfile.gettempdir()
    return given if os.geteuid() != 0 or _is_reachable(Path(given)) else "/tmp"

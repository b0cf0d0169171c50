"""A real S3 server for tests: versitygw over a folder, built once with Go and kept outside of the checkout.

``python -m lab.s3_server`` builds it, which takes minutes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from conduit_dagster.processes import is_up

from .server_process import free_port, guard_of
from .waiting import wait_until

VARIABLE = "CONDUIT_VERSITYGW"
"""Environment variable with the path of the program."""
VERSION = "1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_BUILT = _CACHE / "conduit-dagster" / f"versitygw-{VERSION}"


class NoS3Error(RuntimeError):
    """Raised if the server's program is not there."""


def _program() -> Path:
    """Return the path of the program. Raises ``NoS3Error``."""
    kept = Path(os.environ.get(VARIABLE) or _BUILT)
    if not kept.exists():
        raise NoS3Error(f"{kept} is not there; make object-store builds it with Go")
    return kept


def build() -> None:
    """Build the program where it is not there, with ``go`` on ``PATH``."""
    if _BUILT.exists():
        return
    _BUILT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_BUILT.parent, prefix=".versitygw-") as aside:
        subprocess.run(["go", "install", _MODULE], env={**os.environ, "GOBIN": aside}, check=True)
        (Path(aside) / "versitygw").replace(_BUILT)


class S3Server:
    """A server on loopback with one bucket, as a context manager. Objects are files below :attr:`bucket_folder`."""

    bucket = "lake"
    checks_secrets = sets_times = True

    def __init__(self) -> None:
        """Raises ``NoS3Error``."""
        self._binary = _program()
        self._folder = Path(tempfile.mkdtemp(prefix="conduit-s3-"))
        self.bucket_folder = self._folder / "data" / self.bucket
        self.user, self.secret = f"user{secrets.token_hex(4)}", secrets.token_hex(20)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its HTTP address."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which boto, ``deltalake`` and every other client find it."""
        return {
            "AWS_ACCESS_KEY_ID": self.user, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.address, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def url(self, *names: str) -> str:
        """Return the URL of an object or folder of the bucket."""
        return "/".join([f"s3://{self.bucket}", *names])

    def set_time(self, key: str, second: int) -> None:
        """Set when an object was written, in seconds since 1970."""
        os.utime(self.bucket_folder / key, (second, second))

    def keys(self, below: str = "") -> list[str]:
        """Return the names of all objects below a folder."""
        folder = self.bucket_folder / below
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def __enter__(self) -> Self:
        self.bucket_folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it with its existing objects, and wait until it responds."""
        log = self._folder / "log"
        environment = {
            "ROOT_ACCESS_KEY": self.user, "ROOT_SECRET_KEY": self.secret, "PATH": os.environ["PATH"],
        }  # fmt: skip
        command = [self._binary, "--port", f"127.0.0.1:{self._port}", "posix", str(self.bucket_folder.parent)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        self._guard = guard_of(self._process.pid, signal.SIGKILL)
        process = self._process
        wait_until(
            lambda: is_up(process.pid, self._port),
            "versitygw is up",
            over=lambda: process.poll() is not None,
            said=log.read_text,
        )

    def stop(self) -> None:
        """Stop it: connections are refused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._guard.kill()
            self._guard.communicate()
            self._process = None

    @contextmanager
    def other_secret(self) -> Generator[None]:
        """Give its user another secret within the context."""
        own = self.secret
        self._restart(secrets.token_hex(20))
        try:
            yield
        finally:
            self._restart(own)

    def _restart(self, secret: str) -> None:
        self.stop()
        self.secret = secret
        self.start()


if __name__ == "__main__":
    build()

"""Adobe's S3Mock, an S3 server of jars from Maven, for machines where versitygw is not built. It takes any secret."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from conduit_dagster.processes import is_up

from .maven_jars import JarSet, java
from .server_process import free_port, guard_of
from .waiting import wait_until

VARIABLE: Final = "CONDUIT_S3MOCK_JARS"
"""Environment variable with the folder of the jars."""
JARS: Final = JarSet("s3mock-4.9.1", (("com.adobe.testing", "s3mock", "4.9.1"),), 80)
_MAIN: Final = "com.adobe.testing.s3mock"


class S3Mock:
    """A server on loopback with one bucket, as a context manager, with the members of ``S3Server`` that it can have."""

    bucket = "lake"
    checks_secrets = sets_times = False

    def __init__(self) -> None:
        """Raises ``NoJarsError``."""
        self._jars, self._java = JARS.folder(os.environ.get(VARIABLE)), java()
        self._folder = Path(tempfile.mkdtemp(prefix="conduit-s3-"))
        self.user, self.secret = "user", "open-sesame-9"
        self._port = free_port()

    @property
    def address(self) -> str:
        """Its HTTP address."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
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
        settings = {
            "http-port": self._port, "store.initial-buckets": self.bucket, "store.root": self._folder / "data",
            "store.retain-files-on-exit": "true",
        }  # fmt: skip
        command = [
            self._java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*",
            f"{_MAIN}.S3MockApplication", "--server.port=0",
            *(f"--{_MAIN}.{name}={value}" for name, value in settings.items()),
        ]  # fmt: skip
        (self._folder / "data").mkdir(exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self._folder)
        self._guard = guard_of(self._process.pid, signal.SIGKILL)
        process = self._process
        wait_until(
            lambda: is_up(process.pid, self._port),
            "S3Mock is up",
            over=lambda: process.poll() is not None,
            said=log.read_text,
        )

    def stop(self) -> None:
        """Stop it: connections are refused."""
        self._process.kill()
        self._process.wait()
        self._guard.kill()
        self._guard.communicate()

    def set_time(self, key: str, second: int) -> None:
        """Leave the object's time as it is."""

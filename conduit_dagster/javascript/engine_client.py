"""Client of the process that runs scripts: started on demand, shared by all scripts, killed at a limit."""

from __future__ import annotations

import atexit
import contextlib
import marshal
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from conduit_dagster.javascript.engine_process import ANSWER

ENGINES = 16
"""Maximum number of scripts loaded at once; the least recently used one is unloaded first."""
_STALLED_SECONDS = 30.0
_ROOT = str(Path(__file__).parents[2])
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from conduit_dagster.javascript.engine_process import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]))"
)


class EngineAnswer(NamedTuple):
    """The process's answer for one record."""

    kind: int
    text: bytes


class EngineDied(Exception):  # noqa: N818  # it says what happened; the caller decides whose error it is
    """Raised if the process ended before it had answered everything."""

    def __init__(self, answers: list[EngineAnswer], at: int | None, *, limit: bool, reason: str) -> None:
        super().__init__(reason)
        self.answers = answers
        self.at = at
        """Index of the record in progress, or None."""
        self.limit = limit
        """Whether the process was ended because the record took too long."""


class ScriptSource(NamedTuple):
    """A script and its limits, which identify an engine."""

    text: str
    seconds: float
    limit: int


class EngineClient:
    """A child process with JavaScript engines. Not thread-safe: :func:`engines` lends it to one thread at a time."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[ScriptSource, int] = OrderedDict()
        self._keys = 0
        self.alive = True
        with tempfile.TemporaryFile() as shared:
            shared.truncate(mmap.PAGESIZE)
            self._map = mmap.mmap(shared.fileno(), mmap.PAGESIZE)
            numbers = str(os.getpid()), str(shared.fileno())
            command = [sys.executable, "-I", "-S", "-c", _BOOT, *numbers, *sys.path, _ROOT]
            self._process = subprocess.Popen(  # our own program
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(shared.fileno(),), bufsize=0
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def load(self, source: ScriptSource) -> str | None:
        """Prepare an engine for the script; return why it can't be used, or None. Raises :class:`EngineDied`."""
        if source in self._loaded:
            self._loaded.move_to_end(source)
            return None
        dropped = self._loaded.popitem(last=False)[1] if len(self._loaded) >= ENGINES else None
        self._keys += 1
        [answer] = self._ask(("load", self._keys, dropped, tuple(source)), 1, source.seconds)
        if answer.kind != ANSWER:
            return answer.text.decode()
        self._loaded[source] = self._keys
        return None

    def run(self, source: ScriptSource, now_ms: int, records: list[tuple[str, int]]) -> list[EngineAnswer]:
        """Run a loaded script on records, each with its seed; return an answer for each. Raises :class:`EngineDied`."""
        return self._ask(("run", self._loaded[source], now_ms, records), len(records), source.seconds)

    def kill(self) -> None:
        """Kill the process, whatever it is doing. Nothing is left behind."""
        self._process.kill()
        self._process.wait()
        self._close()

    def forget(self) -> None:
        """Leave the process to its real parent, from which this process was forked."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        self.alive = False
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _ask(self, request: Any, count: int, seconds: float) -> list[EngineAnswer]:
        answers: list[EngineAnswer] = []
        try:
            self._write(marshal.dumps(request))
            while len(answers) < count:
                answers += self._frame(seconds)
        except (BrokenPipeError, EOFError):
            self._died(answers)
        except BaseException:
            # its next answer belongs to an abandoned request
            self.kill()
            raise
        return answers

    def _write(self, body: bytes) -> None:
        left = memoryview(struct.pack("<I", len(body)) + body)
        while left:
            left = left[os.write(self._input, left) :]

    def _frame(self, seconds: float) -> list[EngineAnswer]:
        body = self._read(struct.unpack("<I", self._read(4, seconds))[0], seconds)
        (count,) = struct.unpack_from("<I", body)
        heads = struct.unpack_from(f"<{2 * count}I", body, 4)
        at = 4 + 8 * count
        answers: list[EngineAnswer] = []
        for i in range(0, 2 * count, 2):
            answers.append(EngineAnswer(heads[i], body[at : at + heads[i + 1]]))
            at += heads[i + 1]
        return answers

    def _read(self, size: int, seconds: float) -> bytes:
        pieces: list[bytes] = []
        while size:
            self._await(seconds)
            piece = os.read(self._output, min(size, 1 << 20))
            if not piece:
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _await(self, seconds: float) -> None:
        """Wait for bytes. A process that neither progresses nor uses CPU time is killed too, but late."""
        seen, since = self._at(), time.monotonic()
        while not self._poll.poll(1000):
            if (now_at := self._at()) != seen:
                seen, since = now_at, time.monotonic()
            elif time.monotonic() - since > _STALLED_SECONDS + 20 * seconds:
                self._process.send_signal(signal.SIGPROF)

    def _at(self) -> int:
        return struct.unpack_from("<Q", self._map)[0]

    def _died(self, answers: list[EngineAnswer]) -> NoReturn:
        self._process.wait()
        self._close()
        code = self._process.returncode
        at = self._at()
        raise EngineDied(
            answers,
            at - 1 if at else None,
            limit=code == -signal.SIGPROF,
            reason=f"signal {-code}" if code < 0 else f"exit code {code}",
        ) from None


class _Shared:
    """The only client of this process, and its lock. A forked process starts without one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: EngineClient | None = None

    def after_fork(self) -> None:
        client, self.client = self.client, None
        self.lock = threading.Lock()
        if client is not None:
            client.forget()

    def close(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.kill()


_shared = _Shared()
os.register_at_fork(after_in_child=_shared.after_fork)
atexit.register(_shared.close)


@contextlib.contextmanager
def engines() -> Generator[EngineClient]:
    """Lend the engine process exclusively to this thread; start it if necessary."""
    with _shared.lock:
        client = _shared.client
        if client is None:
            client = _shared.client = EngineClient()
        try:
            yield client
        finally:
            if not client.alive:
                _shared.client = None

"""Main program of the process that runs scripts: one JavaScript engine (QuickJS) per script.

It imports only the standard library and QuickJS: it starts in 30 ms and takes 9 MB.

Limits: QuickJS checks the time between instructions, and then only the record fails. Inside a native call it does not
check (``Array.prototype.reverse.call({length: 2**40})``); then the kernel ends the process (``SIGPROF``), even while
Python's lock is held. A script's own memory is limited by QuickJS, the memory of the process by the kernel.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import _quickjs as quickjs  # the package's own module starts executors and takes 80 ms

from conduit_dagster.javascript.prelude import PRELUDE

ANSWER: Final = 0
"""The record's answer, as JSON."""
THROWN: Final = 1
"""QuickJS stopped the script; with its message."""
UNFIT: Final = 2
"""The record can't be passed to a script; with the reason."""
NO_MEMORY: Final = 3
"""The record alone exceeded the memory limit; the script's state is lost."""
UNUSABLE: Final = 4
"""The script can't be used; with the reason."""

OWN_BYTES: Final = 512 << 20
"""Address space of the process itself."""
COPIES: Final = 8
"""Address space per byte of a script's limit: a result exists in several forms at once."""
_CAUGHT: Final = ('[null,"InternalError: out of memory', '[null,"null')
"""Answers of the prelude if the script ran out of memory: the script's state is discarded."""
_FLUSH_SECONDS = 0.05
_WATCH_SECONDS = 1.0


class _Engine:
    """A script in an engine, which is recreated after it ran out of memory."""

    def __init__(self, text: str, seconds: float, limit: int) -> None:
        self._text, self._seconds, self.limit = text, seconds, limit
        # beyond QuickJS's own limit: the kernel stops what QuickJS does not notice
        self.kill_seconds = seconds * 1.25 + 0.05
        self._now = 0
        self._begin: Callable[[int], None] | None = None
        self._call: Callable[[str, int], str] | None = None
        self._had_records = False

    def load(self) -> str | None:
        """Compile the script and run its top level; return why it can't be used, or None."""
        arm(self.kill_seconds)
        try:
            context = quickjs.Context()
            context.eval(PRELUDE)
            begin: Callable[[int], None] = context.get("__begin")
            call: Callable[[str, int], str] = context.get("__call")
            context.set_memory_limit(self.limit)
            context.set_time_limit(self._seconds)
            context.eval(self._text)
            if context.eval("typeof process") != "function":
                return "it defines no function process(record)"
        except (quickjs.JSException, MemoryError, UnicodeError) as error:
            return _unusable(error, self._seconds, self.limit)
        begin(self._now)
        self._begin, self._call = begin, call
        arm(self.kill_seconds)  # the time of the top level is not the record's
        return None

    def begin(self, now_ms: int) -> None:
        self._now = now_ms
        if self._begin is not None:
            self._begin(now_ms)

    def run(self, text: str, seed: int) -> tuple[int, str]:
        """Run the script on one record, once more in a new engine if earlier records may have filled the memory."""
        had_records = self._had_records
        answer = self._run_once(text, seed)
        return self._run_once(text, seed) if self._call is None and had_records else answer

    def _run_once(self, text: str, seed: int) -> tuple[int, str]:
        """Run the script on one record; discard the engine if that took all memory."""
        if self._call is None and (wrong := self.load()) is not None:
            return UNUSABLE, wrong
        self._had_records = True
        try:
            answer = self._call(text, seed)  # pyright: ignore[reportOptionalCall]
            if answer.startswith(_CAUGHT):
                self._discard()
            return ANSWER, answer
        except quickjs.JSException as error:
            if not out_of_memory(str(error)):
                return THROWN, str(error)
        except MemoryError:
            pass
        except (UnicodeError, TypeError, OverflowError) as error:
            return UNFIT, str(error)
        self._discard()
        return NO_MEMORY, ""

    def _discard(self) -> None:
        self._call = self._begin = None
        self._had_records = False


def out_of_memory(text: str) -> bool:
    """Return whether QuickJS reports the memory limit; without memory for an error it throws null."""
    return text.startswith("InternalError: out of memory") or text.strip() == "null"


def _unusable(error: Exception, seconds: float, limit: int) -> str:
    text = " ".join(str(error).split())
    if text.startswith("InternalError: interrupted"):
        return f"its top level takes more than {seconds:g} s"
    if isinstance(error, MemoryError) or out_of_memory(text):
        return f"its top level takes more than {limit >> 20} MB"
    return text


def arm(seconds: float) -> None:
    """Let the kernel end this process after this much CPU time; 0 means never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


class _Server:
    """Answers requests until the parent closes the pipe."""

    def __init__(self, progress: memoryview) -> None:
        self._progress = progress
        self._engines: dict[int, _Engine] = {}

    def serve(self) -> None:
        while (request := _read()) is not None:
            kind, *arguments = request
            if kind == "run":
                self._run(*arguments)
            else:
                self._load(*arguments)
            arm(0)

    def _load(self, key: int, dropped: int | None, script: tuple[str, float, int]) -> None:
        self._engines.pop(dropped if dropped is not None else key, None)
        engine = self._engines[key] = _Engine(*script)
        _limit_memory(OWN_BYTES + COPIES * sum(engine.limit for engine in self._engines.values()))
        self._progress[0] = 1
        wrong = engine.load()
        self._progress[0] = 0
        if wrong is not None:
            del self._engines[key]
        _write([(ANSWER, "") if wrong is None else (UNUSABLE, wrong)])

    def _run(self, key: int, now_ms: int, records: list[tuple[str, int]]) -> None:
        engine, progress = self._engines[key], self._progress
        answers: list[tuple[int, str]] = []
        arm(engine.kill_seconds)
        engine.begin(now_ms)
        armed = flushed = time.monotonic()
        for i, (text, seed) in enumerate(records, 1):
            progress[0] = i
            answers.append(engine.run(text, seed))
            now = time.monotonic()
            # CPU time never exceeds elapsed time: this saves a system call per record
            if now - armed > engine.kill_seconds * 0.05:
                arm(engine.kill_seconds)
                armed = now
            if now - flushed > _FLUSH_SECONDS:
                progress[0] = 0
                _write(answers)
                answers, flushed = [], now
        progress[0] = 0
        if answers:
            _write(answers)


def _read() -> Any:
    head = _read_exactly(4)
    if head is None:
        return None
    body = _read_exactly(struct.unpack("<I", head)[0])
    return None if body is None else marshal.loads(body)  # written by our own parent


def _read_exactly(size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _write(answers: list[tuple[int, str]]) -> None:
    """Write a frame: its length, the number of answers, kind and length of each, and their texts as UTF-8."""
    texts = [text.encode(errors="replace") for _, text in answers]
    heads = [number for (kind, _), text in zip(answers, texts, strict=True) for number in (kind, len(text))]
    body = struct.pack(f"<{len(heads) + 1}I", len(texts), *heads) + b"".join(texts)
    left = memoryview(struct.pack("<I", len(body)) + body)
    while left:
        left = left[os.write(1, left) :]


def _limit_memory(size: int) -> None:
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        hard = resource.getrlimit(kind)[1]
        wanted = size if hard == resource.RLIM_INFINITY else min(size, hard)
        # macOS does not support every limit; QuickJS's own still applies there
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (wanted, hard))


def _watch(parent: int) -> None:
    """Exit when the parent has died, even inside a script, which does not read the pipe."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(0)


def main(parent: int, progress: int) -> None:
    """Serve requests on standard input. ``progress``: file with the number of the current record, counted from 1."""
    # the parent decides when this process ends: after a signal to the whole group it still finishes its step
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    shared = memoryview(mmap.mmap(progress, mmap.PAGESIZE)).cast("Q")
    with contextlib.suppress(BrokenPipeError):
        _Server(shared).serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

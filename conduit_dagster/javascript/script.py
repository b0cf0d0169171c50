"""Scripts, each with its own JavaScript engine (QuickJS)."""

from __future__ import annotations

from typing import Any

import msgspec
import quickjs
import structlog

from conduit_dagster.javascript.prelude import PRELUDE
from conduit_dagster.record import OPERATIONS, Data, Record

_log = structlog.get_logger("conduit_dagster.javascript")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_MEGABYTE = 1 << 20


class ScriptError(Exception):
    """The script is unusable: it does not compile, or defines no function ``process``."""


class ScriptRecordError(Exception):
    """The script fails on one record."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Script:
    """A script in one engine. Only the thread that created it may use it: QuickJS watches that thread's stack."""

    def __init__(self, text: str, seconds: float, megabytes: int) -> None:
        """``seconds``: CPU time limit for one record; ``megabytes``: memory limit of the script.

        Raises :class:`ScriptError`.
        """
        self._text, self._seconds, self._bytes = text, seconds, megabytes * _MEGABYTE
        self._now = 0
        self._start()

    def _start(self) -> None:
        context = quickjs.Context()
        context.eval(PRELUDE)
        context.set_memory_limit(self._bytes)
        context.set_time_limit(self._seconds)
        try:
            context.eval(self._text)
            if context.eval("typeof process") != "function":
                raise ScriptError("it defines no function process(record)")
        except quickjs.JSException as error:
            raise ScriptError(_one_line(error)) from None
        self._begin, self._call = context.get("__begin"), context.get("__call")

    def begin(self, now_ns: int) -> None:
        """Set the time that the script sees from now on: the step's time, so that a repeat gives the same result."""
        self._now = now_ns // 1_000_000
        self._begin(self._now)

    def run(self, record: Record, seed: int) -> Record | None:
        """Run the script; return the record, changed in place, or None to drop it. Raises :class:`ScriptRecordError`.

        ``seed``: seed of ``Math.random`` for this record.
        """
        try:
            answer: Any = _decode(self._call(_given(record), seed))
        except quickjs.JSException as error:
            raise self._stopped(_one_line(error)) from None
        except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, OverflowError) as error:
            raise ScriptRecordError("javascript.record", f"the record can't be given to a script: {error}") from None
        for level, message, fields in answer[2] if len(answer) > 2 else ():
            _say(level, message, fields)
        if answer[1] is not None:
            raise self._stopped(" ".join(answer[1].split()))
        return None if answer[0] is None else _taken(record, answer[0])

    def _stopped(self, text: str) -> ScriptRecordError:
        if text.startswith("InternalError: interrupted"):
            return ScriptRecordError(
                "javascript.too_long", f"the script took more than {self._seconds:g} s for the record"
            )
        if text.startswith("InternalError: out of memory"):
            # discard all that the script accumulated: the next record gets a new engine
            self._start()
            self._begin(self._now)
            return ScriptRecordError("javascript.memory", f"the script took more than {self._bytes // _MEGABYTE} MB")
        return ScriptRecordError("javascript.failed", text)


def _given(record: Record) -> str:
    kinds, parts = "", list[Any]()
    for part in (record.key, record.before, record.after):
        raw = isinstance(part, bytes)
        kinds += "r" if raw else "d"
        parts.append(part.decode("latin-1") if raw else part)
    position = str(record.position).encode().decode("latin-1")
    return _encode([position, record.operation, record.metadata, kinds, *parts]).decode()


def _taken(record: Record, answer: Any) -> Record:
    operation, metadata, kinds, *parts = answer
    if operation not in OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise ScriptRecordError(
            "javascript.result", f"the script's record has the operation {operation!r}: one of {known}"
        )
    record.operation, record.metadata = operation, metadata
    record.key, record.before, record.after = map(_data, kinds, parts)
    return record


def _data(kind: str, part: Any) -> Data:
    return part.encode("latin-1") if kind == "r" else part


def _say(level: str, message: str, fields: dict[str, Any]) -> None:
    getattr(_log, "debug" if level == "trace" else "warning" if level == "warn" else level)(message, **fields)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""Scripts: passing records to a script and back, and the outcome for a record on which it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
import structlog

from conduit_dagster.javascript.engine_client import EngineAnswer, EngineClient, EngineDied, ScriptSource, engines
from conduit_dagster.javascript.engine_process import ANSWER, NO_MEMORY, THROWN, UNUSABLE
from conduit_dagster.record import OPERATIONS, Data, Record

_log = structlog.get_logger("conduit_dagster.javascript")
_encode = msgspec.json.Encoder().encode
_MEGABYTE = 1 << 20
_BLOCK_RECORDS = 256
_BLOCK_CHARS = 1 << 18
_ATTEMPTS = 3

_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "error": "error"}
"""A script's log levels, with their log functions: a script passes a level, never an attribute name."""
_INTERRUPTED: Final = EngineAnswer(THROWN, b"InternalError: interrupted")
"""QuickJS's message after the time limit; also used for a record at which the kernel ended the process."""
_OURS: Final = frozenset(
    {"self", "event", "level", "timestamp", "logger", "logger_name", "exc_info", "stack_info", "stack", "exception"}
)
"""Names reserved by the logger: a script's field with such a name gets a prefix."""

Level = Literal["trace", "debug", "info", "warn", "error"]
_Made = tuple[str, dict[str, str], str, Any, Any, Any]
_Said = list[tuple[Level, str, dict[str, Any]]]


class _Answer(msgspec.Struct, array_like=True):
    """The prelude's answer for one record. A script can tamper with its parts, so they are checked."""

    made: _Made | None
    failure: str | None
    said: _Said = []


_decode = msgspec.json.Decoder(_Answer).decode

_OUT_OF_MEMORY: Final = "InternalError: out of memory"


class ScriptError(Exception):
    """Raised for an unusable script: it does not compile, has no function ``process``, or takes too long to load."""


class ScriptRecordError(Exception):
    """Raised if the script fails on one record."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


Outcome = Record | None | ScriptRecordError
"""The record, changed in place; None if the script dropped it; or the error."""


class Script:
    """A script, run in the engine process, where it can be stopped in any state. Thread-safe."""

    def __init__(self, text: str, seconds: float, megabytes: int) -> None:
        """``seconds``: CPU time limit for one record; ``megabytes``: memory limit of the script.

        Raises :class:`ScriptError`.
        """
        self._source = ScriptSource(text, seconds, megabytes * _MEGABYTE)
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                with engines() as client:
                    self._load(client)
                return
            except EngineDied as died:
                reason = str(died)
        raise ScriptError(f"the process that compiles it died {_ATTEMPTS} times ({reason})")

    def run(self, records: Sequence[Record], seeds: Sequence[int], now_ns: int) -> list[Outcome]:
        """Run the script on each record; return the outcome of each, in order. Raises :class:`ScriptError`.

        ``seeds``: seeds of ``Math.random``. ``now_ns``: the script's clock, the time of the step, so that a repeat
        gives the same result. A record at which the process is ended fails, and the others continue; the script has
        then lost its state, as after running out of memory, and records before that one may have been processed twice.
        A record that runs out of memory is run again without the state that earlier records left.
        """
        outcomes: list[Outcome] = [None] * len(records)
        given: list[tuple[str, int]] = []
        places: list[int] = []
        size = 0
        for i, record in enumerate(records):
            try:
                text = _given(record)
            except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, OverflowError) as error:
                outcomes[i] = _unfit(error)
                continue
            given.append((text, seeds[i]))
            places.append(i)
            size += len(text)
            if size >= _BLOCK_CHARS or len(given) >= _BLOCK_RECORDS:
                self._take(places, self._answers(given, now_ns), records, outcomes)
                given, places, size = [], [], 0
        self._take(places, self._answers(given, now_ns), records, outcomes)
        return outcomes

    def _take(
        self, places: list[int], answers: list[EngineAnswer], records: Sequence[Record], outcomes: list[Outcome]
    ) -> None:
        for i, answer in zip(places, answers, strict=True):
            try:
                outcomes[i] = self._outcome(records[i], answer)
            except ScriptRecordError as error:
                outcomes[i] = error

    def _answers(self, given: list[tuple[str, int]], now_ns: int) -> list[EngineAnswer]:
        found: dict[int, EngineAnswer] = {}
        deaths: Counter[int] = Counter()
        batch = waiting = list(range(len(given)))
        while waiting:
            try:
                with engines() as client:
                    self._load(client)
                    got = client.run(self._source, now_ns // 1_000_000, [given[i] for i in batch])
            except EngineDied as died:
                got = died.answers
                self._blame(died, batch, deaths, found)
            found.update(zip(batch, got, strict=False))
            waiting = [i for i in waiting if i not in found]
            # a process that died by itself may not be the record's fault: from here on each record is sent alone
            batch = waiting[:1] if deaths else waiting
        return [found[i] for i in range(len(given))]

    def _blame(self, died: EngineDied, batch: list[int], deaths: Counter[int], found: dict[int, EngineAnswer]) -> None:
        if died.limit and died.at is not None:
            found[batch[died.at]] = _INTERRUPTED
            return
        culprit = batch[died.at or 0]
        deaths[culprit] += 1
        if deaths[culprit] >= _ATTEMPTS:
            reason = f"the process that runs the script died {_ATTEMPTS} times at this record ({died})"
            found[culprit] = EngineAnswer(THROWN, reason.encode())

    def _load(self, client: EngineClient) -> None:
        try:
            wrong = client.load(self._source)
        except EngineDied as died:
            if not died.limit:
                raise
            wrong = f"its top level takes more than {self._source.seconds:g} s"
        if wrong is not None:
            raise ScriptError(wrong)

    def _outcome(self, record: Record, answer: EngineAnswer) -> Record | None:
        if answer.kind != ANSWER:
            raise self._stopped(answer)
        try:
            found = _decode(answer.text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise _unreadable(error) from None
        for level, message, fields in found.said:
            _say(level, message, fields)
        if found.failure is not None:
            raise self._failed(" ".join(found.failure.split()))
        return None if found.made is None else _taken(record, found.made)

    def _stopped(self, answer: EngineAnswer) -> Exception:
        text = " ".join(answer.text.decode(errors="replace").split())
        if answer.kind == UNUSABLE:
            return ScriptError(text)
        if answer.kind == NO_MEMORY:
            return self._failed(_OUT_OF_MEMORY)
        return self._failed(text) if answer.kind == THROWN else _unfit(text)

    def _failed(self, text: str) -> ScriptRecordError:
        if text.startswith(_INTERRUPTED.text.decode()):
            seconds = self._source.seconds
            return ScriptRecordError("javascript.too_long", f"the script took more than {seconds:g} s for the record")
        if text.startswith(_OUT_OF_MEMORY):
            megabytes = self._source.limit // _MEGABYTE
            return ScriptRecordError("javascript.memory", f"the script took more than {megabytes} MB")
        return ScriptRecordError("javascript.failed", text)


def _unfit(reason: object) -> ScriptRecordError:
    return ScriptRecordError("javascript.record", f"the record can't be given to a script: {reason}")


def _unreadable(error: Exception) -> ScriptRecordError:
    is_half = "surrogate" in str(error)
    what = "has text that ends inside a character, such as half of 😀" if is_half else f"can't be read: {error}"
    return ScriptRecordError("javascript.result", f"the script's record {what}")


def _given(record: Record) -> str:
    kinds, parts = "", list[Any]()
    for part in (record.key, record.before, record.after):
        raw = isinstance(part, bytes)
        kinds += "r" if raw else "d"
        parts.append(part.decode("latin-1") if raw else part)
    position = str(record.position).encode().decode("latin-1")
    return _encode([position, record.operation, record.metadata, kinds, *parts]).decode()


def _taken(record: Record, made: _Made) -> Record:
    operation, metadata, kinds, *parts = made
    if operation not in OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise ScriptRecordError(
            "javascript.result", f"the script's record has the operation {operation!r}: one of {known}"
        )
    if len(kinds) != len(parts):
        raise ScriptRecordError("javascript.result", "the script's record lacks a part")
    data = [_data(kind, part) for kind, part in zip(kinds, parts, strict=True)]
    record.operation, record.metadata = operation, metadata
    record.key, record.before, record.after = data
    return record


def _data(kind: str, part: Any) -> Data:
    try:
        if kind == "r":
            return part.encode("latin-1")
    except (AttributeError, UnicodeError):
        pass
    else:
        if part is None or isinstance(part, dict):
            return part
    raise ScriptRecordError("javascript.result", "a part of the script's record is neither a document nor raw data")


def _say(level: Level, message: str, fields: dict[str, Any]) -> None:
    kept = {f"script_{name}" if name in _OURS or name.startswith("_") else name: fields[name] for name in fields}
    # looked up for each message: a function bound at import would keep the log settings of that moment
    getattr(_log, _LEVELS[level])(message, **kept)

"""The results of errors raised by an author's processor."""

from __future__ import annotations

import pytest

from conduit_dagster.expressions import Clock
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import ProcessError, Processor, ProcessorContext, ProcessorSettings
from conduit_dagster.sdk.context import IdempotencyKeys


class Raising(Processor):
    name = "raising"

    def __init__(self, error: Exception) -> None:
        super().__init__(ProcessorSettings(), ProcessorContext("p", "raising", Clock(), "", IdempotencyKeys()))
        self._error = error

    def process(self, record: Record) -> Record:
        if record.after == {"bad": True}:
            raise self._error
        return record


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


class NoCallError(ProcessError):
    def __init__(self, number: str) -> None:
        self.number = number


class NoCallFatalError(FatalError):
    def __init__(self, number: str) -> None:
        self.number = number


def each_others_cause() -> ValueError:
    error, other = ValueError("no"), ValueError("other")
    error.__cause__, other.__cause__ = other, error
    return error


GOOD, BAD = Record(1, {}, {"bad": False}), Record(2, {}, {"bad": True})


@pytest.mark.parametrize(
    ("error", "nack"),
    [
        (ValueError("no"), Nack("processor.error", "ValueError: no")),
        (ProcessError("no", code="mine.no"), Nack("mine.no", "no")),
        (FatalError("no", code="mine.no"), Nack("mine.no", "no")),
        (FatalError("no", code=422), Nack("422", "no")),
        (SpeechlessError(), Nack("processor.error", "SpeechlessError: its text can't be read, KeyError")),
        (NoCallError("12"), Nack("processor.error", "12")),
        (NoCallFatalError("12"), Nack("pipeline.error", "NoCallFatalError: 12")),
        (each_others_cause(), Nack("processor.error", "ValueError: no")),
        (ExceptionGroup("tasks", [ValueError("a"), ProcessError("no", code="mine.no")]), Nack("mine.no", "no")),
        (
            ExceptionGroup("tasks", [ValueError("a")]),
            Nack("processor.error", "ExceptionGroup: tasks (1 sub-exception)"),
        ),
    ],
)
def test_an_error_is_the_nack_of_its_record(error: Exception, nack: Nack) -> None:
    assert Raising(error).process_block([GOOD, BAD, GOOD]) == [GOOD, nack, GOOD]


AWAY = TransientError("away", code="mine.away")


@pytest.mark.parametrize(
    "error", [AWAY, ExceptionGroup("tasks", [ProcessError("no"), AWAY])], ids=["itself", "in a group"]
)
def test_a_transient_error_is_no_nack(error: Exception) -> None:
    """Nor where tasks of asyncio, say, raised it beside others."""
    with pytest.raises(TransientError) as caught:
        Raising(error).process_block([GOOD, BAD])
    assert caught.value is AWAY


def _from_lack_of_memory() -> ProcessError:
    error = ProcessError("can't be decoded", code="mine.no")
    error.__cause__ = MemoryError()
    return error


@pytest.mark.parametrize("error", [MemoryError(), _from_lack_of_memory(), ExceptionGroup("tasks", [MemoryError()])])
def test_a_lack_of_memory_is_no_nack(error: Exception) -> None:
    """Other records and tasks hold it: this one may pass when the step is repeated."""
    with pytest.raises(MemoryError):
        Raising(error).process_block([GOOD, BAD, GOOD])

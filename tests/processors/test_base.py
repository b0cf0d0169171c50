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


GOOD, BAD = Record(1, {}, {"bad": False}), Record(2, {}, {"bad": True})


@pytest.mark.parametrize(
    ("error", "nack"),
    [
        (ValueError("no"), Nack("processor.error", "ValueError: no")),
        (ProcessError("no", code="mine.no"), Nack("mine.no", "no")),
        (FatalError("no", code="mine.no"), Nack("mine.no", "no")),
        (FatalError("no", code=422), Nack("422", "no")),
        (SpeechlessError(), Nack("processor.error", "SpeechlessError: its text can't be read, KeyError")),
    ],
)
def test_an_error_is_the_nack_of_its_record(error: Exception, nack: Nack) -> None:
    assert Raising(error).process_block([GOOD, BAD, GOOD]) == [GOOD, nack, GOOD]


def test_a_transient_error_is_no_nack() -> None:
    error = TransientError("away", code="mine.away")
    with pytest.raises(TransientError) as caught:
        Raising(error).process_block([GOOD, BAD])
    assert caught.value is error


def _from_lack_of_memory() -> ProcessError:
    error = ProcessError("can't be decoded", code="mine.no")
    error.__cause__ = MemoryError()
    return error


@pytest.mark.parametrize("error", [MemoryError(), _from_lack_of_memory()])
def test_a_lack_of_memory_is_no_nack(error: Exception) -> None:
    """Other records and tasks hold it: this one may pass when the step is repeated."""
    with pytest.raises(MemoryError):
        Raising(error).process_block([GOOD, BAD, GOOD])

"""``error``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from conduit_dagster.processors.error import ErrorSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import Nack, ProcessError

Run = Callable[..., list[Any]]


@pytest.mark.parametrize("case", ["error-static", "error-template"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    """The output equals Conduit's."""
    golden(case)


def test_every_record_is_refused_with_the_message(run: Run) -> None:
    """The message is Conduit's own by default, a literal, or a template's output for the record."""
    assert run("error", {}, b"", {}) == [Nack("processor.error", "error processor triggered")] * 2
    assert run("error", {"message": "no"}, {}) == [Nack("processor.error", "no")]
    templated = run("error", {"message": "bad {{ .Payload.After.id }}"}, {"id": 2}, {"id": "x"})
    assert [nack.message for nack in templated] == ["bad 2", "bad x"]


def test_a_message_that_fails_is_a_nack_all_the_same(run: Run, processor: Callable[..., Any]) -> None:
    """The nack then reports both."""
    [nack] = run("error", {"message": "{{ len .Payload.After.id }}"}, {"id": 2})
    assert nack.code == "processor.error"
    assert "len .Payload.After.id" in nack.message
    with pytest.raises(ProcessError, match=r"^no$"):
        processor("error", {"message": "no"}).process(Record(1, {}))


def test_bad_template() -> None:
    """A template that cannot be compiled is found by validation."""
    with pytest.raises(ValidationError) as caught:
        ErrorSettings(message="{{ nope . }}")
    assert caught.value.errors()[0]["type"] == "expression"


def test_reads_key(processor: Callable[..., Any]) -> None:
    """Only a message that shows the key needs it."""
    assert processor("error").reads_key is False
    assert processor("error", {"message": "{{ .Key }}"}).reads_key is True

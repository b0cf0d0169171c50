"""Loops of processors that change records in place."""

from __future__ import annotations

import pytest

from conduit_dagster.expressions import Clock
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.record import Record
from conduit_dagster.sdk import ProcessorContext, ProcessorSettings


class Broken(InPlaceProcessor):
    """Its code is not Python."""

    name = "broken"
    payload_code = PayloadCode("after = )", {})

    def change(self, record: Record) -> None:
        record.after = None


def test_code_that_is_no_python_is_no_records_fault() -> None:
    """It was mistaken for one, over and over."""
    broken = Broken(ProcessorSettings(), ProcessorContext("p", "p:x", Clock()))
    with pytest.raises(SyntaxError):
        broken.process_block([Record(1, {}, {}), Record(2, {}, {})])

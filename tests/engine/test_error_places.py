"""An error of a project's plugin names its node and the line, whatever its class."""

from __future__ import annotations

import pytest
from lab.support import Lab, destination, source

SOURCE = """
from conduit_dagster.sdk import Record, Source, Split


class Mine(Source):
    name = "mine"

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 2

    def split(self, start, end, n):
        return [Split(start, 0)]

    def read(self, split, options):
        FAIL
        yield [Record(1, {}, {"i": 1})]
"""
DESTINATION = """
from conduit_dagster.sdk import DriverDestination


class Mine(DriverDestination):
    name = "mine"

    def deliver(self, records, delivery):
        FAIL
"""
FAILS = [
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("open('/nowhere/at/all')", "there is no such file or folder"),
    ("raise ConnectionRefusedError('no server')", "no server"),
]


@pytest.mark.parametrize(("fail", "text"), [*FAILS, ("next(iter(()))", "generator raised StopIteration")])
def test_of_a_source(lab: Lab, fail: str, text: str) -> None:
    lab.write("plugins/mine.py", [SOURCE.replace("FAIL", fail)])
    lab.pipeline(connectors=[{"id": "in", "type": "source", "plugin": "mine", "settings": {}}, destination()])
    error = lab.run().error
    assert error is not None
    assert (error.node, error.fatal) == ("p:in", False)
    assert text in error.message
    assert error.message.endswith(", in plugins/mine.py:18")


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize(("fail", "text"), FAILS)
def test_of_a_destination(lab: Lab, fail: str, text: str, strategy: str) -> None:
    lab.write("in.jsonl", ["a", "b"])
    lab.write("plugins/mine.py", [DESTINATION.replace("FAIL", fail)])
    out = {"id": "out", "type": "destination", "plugin": "mine", "settings": {}}
    lab.pipeline(connectors=[source(), out], delivery={"strategy": strategy})
    error = lab.run().error
    assert error is not None
    assert (error.node, error.fatal, text in error.message) == ("p:out", False, True)
    assert error.message.endswith(", in plugins/mine.py:9")

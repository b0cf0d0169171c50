"""CASES B8 and B6 through the engine: a project's own plugins raise, the run's error has class, code and node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.support import Lab, destination
from pyspark.sql import SparkSession

from conduit_dagster.recovery.errors import FatalError, TransientError

PLUGIN = '''
import json

from conduit_dagster.sdk import ConnectorSettings, DriverDestination, Source, Split
from conduit_dagster.sdk import Processor
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError, coded


class GoneError(FatalError):
    """A class that only this plugin knows."""


ERRORS = {
    "fatal": lambda: FatalError("it is gone", code="mine.gone", fix="put it back"),
    "own": lambda: GoneError("it is gone", code="mine.gone", fix="put it back"),
    "later": lambda: TransientError("try later", code="mine.later"),
    "json": lambda: ValueError(json.dumps({"code": 422, "message": "no such table"})),
    "busy": lambda: ValueError(json.dumps({"code": 429, "message": "slower"})),
    "status": lambda: coded("no such table", code=404),
    "plain": lambda: ValueError("words"),
}


def fail(how):
    name, _, wrapped = how.partition("-")
    if not wrapped:
        raise ERRORS[name]()
    try:
        raise ERRORS[name]()
    except Exception as error:
        raise RuntimeError("somebody's words") from error


class Settings(ConnectorSettings):
    plan: str = ""
    read: str = ""
    write: str = ""


class Faulty(Source):
    name = "faulty"
    Settings = Settings

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        if self.settings.plan:
            fail(self.settings.plan)
        return 1

    def split(self, start, end, n):
        return [Split(start, 0, end - start)]

    def read(self, split, options):
        if self.settings.read:
            fail(self.settings.read)
        yield [Record(1, {}, {"n": 1})]


class Shelf(DriverDestination):
    name = "shelf"
    Settings = Settings

    def deliver(self, records, delivery):
        if self.settings.write:
            fail(self.settings.write)
'''

EXPECTED = {
    "fatal": (FatalError, "mine.gone", "it is gone", "put it back"),
    "own": (FatalError, "mine.gone", "it is gone", "put it back"),
    "later": (TransientError, "mine.later", "try later", None),
    "json": (FatalError, "422", "no such table", None),
    "busy": (TransientError, "429", "slower", None),
    "status": (FatalError, "404", "no such table", None),
}


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("plugins/mine.py", [PLUGIN])
    return lab


def fails(lab: Lab, where: str, how: str) -> tuple[object, ...]:
    """The error of a run whose source (plan, read) or destination (write) fails."""
    given = {where: how}
    out = {"id": "out", "type": "destination", "plugin": "shelf", "settings": given}
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "faulty", "settings": given},
            out if where == "write" else destination(),
        ]
    )
    result = lab.run()
    assert result.error is not None
    assert result.error.node == ("p:out" if where == "write" else "p:in")
    return type(result.error), result.error.code, result.error.message, result.error.fix


@pytest.mark.parametrize("how", [*EXPECTED, "fatal-wrapped", "own-wrapped", "json-wrapped", "busy-wrapped"])
def test_b08_a_source_on_the_driver(lab: Lab, how: str) -> None:
    found = fails(lab, "plan", how)
    wanted = EXPECTED[how.partition("-")[0]]
    assert found[0].__name__ in ("GoneError", wanted[0].__name__)  # type: ignore[attr-defined]
    assert found[1:] == wanted[1:]


@pytest.mark.parametrize("how", [*EXPECTED, "fatal-wrapped", "own-wrapped", "json-wrapped"])
def test_b08_a_source_in_a_task(lab: Lab, how: str) -> None:
    assert fails(lab, "read", how) == EXPECTED[how.partition("-")[0]]


@pytest.mark.parametrize("how", ["fatal", "later", "status"])
def test_b08_a_destination(lab: Lab, how: str) -> None:
    assert fails(lab, "write", how) == EXPECTED[how]


@pytest.mark.parametrize("where", ["plan", "read"])
def test_b08_plain_text_is_transient(lab: Lab, where: str) -> None:
    kind, code, message, *_ = fails(lab, where, "plain")
    assert (kind, code) == (TransientError, "connector.failed")
    assert re.fullmatch(r"ValueError: words, in plugins/mine\.py:\d+", str(message))

"""The conformance suite of processors: every built-in passes it, and one that breaks a rule does not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from lab.http_server import QuietHandler, serving

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.record import Record, copy
from conduit_dagster.sdk import DROP, Example, Processor
from conduit_dagster.testing.conformance import ProcessorConformance, odd_records
from conduit_dagster.testing.conformance.processors import make_processor

_NEEDS_A_SERVER = {"webhook.http"}
Case = tuple[type[Processor], Mapping[str, str]]
CASES: list[Any] = [
    pytest.param((kind, example.settings), id=f"{name}: {example.title}")
    for name, kind in PROCESSORS.all().items()
    for example in kind.examples
]


def test_each_built_in_is_among_them() -> None:
    assert {case.values[0][0].name for case in CASES} == set(PROCESSORS.all()) - _NEEDS_A_SERVER


class TestBuiltIns(ProcessorConformance):
    """With the settings of each of its examples."""

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    @pytest.fixture
    def kind(self, case: Case) -> type[Processor]:
        return case[0]

    @pytest.fixture
    def made_with(self, case: Case) -> Mapping[str, str]:
        return case[1]


class TestWebhook(ProcessorConformance):
    """It needs a server, which echoes what it receives."""

    processor = PROCESSORS.all()["webhook.http"]

    @pytest.fixture
    def made_with(self) -> Iterator[Mapping[str, str]]:
        with serving(ThreadingHTTPServer(("127.0.0.1", 0), Echo)) as server:
            yield {"request.url": f"http://127.0.0.1:{server.server_port}", "request.method": "POST"}


class Echo(QuietHandler):
    def respond(self) -> None:
        self.answer(200, self.body)


class Sound(Processor):
    """Marks each record."""

    name = "sound"

    def process(self, record: Record) -> Record:
        record.metadata["seen"] = "yes"
        return record


class TestSound(ProcessorConformance):
    """As an author writes it."""

    processor = Sound


class Raises(Sound):
    """Fails the step at an odd record."""

    def process_block(self, records: list[Record]) -> list[Any]:
        return [record.after["id"] and record for record in records]  # type: ignore[index, call-overload]


class Counts(Sound):
    """Its results depend on earlier records."""

    seen = 0

    def process(self, record: Record) -> Record:
        self.seen += 1
        record.metadata["n"] = str(self.seen)
        return record


class Forgets(Sound):
    """Returns fewer results than it is given records."""

    shares_records = True

    def process_block(self, records: list[Record]) -> list[Any]:
        return [DROP for record in records if record.after is not None]


class Shares(Sound):
    """Changes metadata that is not its own."""

    shares_records = True


class Spoils(Sound):
    """Returns a value that can't be written."""

    shares_records = True

    def process(self, record: Record) -> Record:
        record.after = {"x": float("nan")}
        return record


class ReturnsNothing(Sound):
    """Lacks its last line: every record would be a nack."""

    def process(self, record: Record) -> Record:
        record.metadata["seen"] = "yes"
        return None  # type: ignore[return-value]


class MarksWithNumbers(Sound):
    """Sets metadata that is no text."""

    def process(self, record: Record) -> Record:
        record.metadata["seen"] = 1  # type: ignore[assignment]
        return record


class ReadsKeys(Sound):
    """Promises not to."""

    keyless = True

    def process(self, record: Record) -> Record:
        record.metadata["of"] = str(record.key)
        return record


class ReadsPositions(ReadsKeys):
    """Promises not to."""

    keyless = True

    def process(self, record: Record) -> Record:
        record.metadata["of"] = str(record.position)
        return record


class Lies(Sound):
    """Its example differs from what it does."""

    examples = (Example("wrong", {}, Record("1", {}, {"id": 1}), DROP),)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Raises, "whatever_it_is_given_is_a_result_or_a_nack"),
        (Counts, "a_record_does_not_depend_on_its_neighbours"),
        (Forgets, "whatever_it_is_given_is_a_result_or_a_nack"),
        (ReturnsNothing, "whatever_it_is_given_is_a_result_or_a_nack"),
        (MarksWithNumbers, "whatever_it_is_given_is_a_result_or_a_nack"),
        (ReadsKeys, "what_it_does_not_read_may_be_left_out"),
        (ReadsPositions, "what_it_does_not_read_may_be_left_out"),
        (Shares, "it_leaves_metadata_that_records_share_alone"),
        (Spoils, "what_goes_on_can_be_delivered"),
        (Lies, "its_examples_are_true"),
    ],
)
def test_what_breaks_a_rule_is_found(kind: type[Processor], check: str) -> None:
    suite = ProcessorConformance()
    given = [*odd_records(), Record("a", {}, {"id": 1}), *map(copy, odd_records())]
    every = {"kind": kind, "make": lambda: make_processor(kind, {}), "given": given}
    test = getattr(suite, f"test_{check}")
    wanted = {name: every[name] for name in inspect.signature(test).parameters}
    with pytest.raises(Exception):  # noqa: B017  # whatever pytest reports as a failure
        test(**wanted)

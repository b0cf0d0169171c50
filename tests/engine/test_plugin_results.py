"""What a user's plugin returns by mistake: one error that names its node and says what is expected."""

from __future__ import annotations

import pytest
from lab.support import DECODE, Lab, destination, processor, queue, source

SOURCE = """
from conduit_dagster.record import Record
from conduit_dagster.sdk import Source, Split


class Mistaken(Source):
    name = "mistaken"

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 3

    def split(self, start, end, n):
        return {split}

    def read(self, split, options):
        records = [Record(i + 1, {{}}, {{"i": i}}) for i in range(3)]
        {read}
"""
DESTINATION = """
from conduit_dagster.sdk import DirectDestination, Receipt, RecordWriter, Sender, StagedDestination


class Post(Sender):
    def send(self, records, first):
        return {receipts}


class Direct(DirectDestination):
    name = "direct"

    def sender(self, task):
        return {sender}


class Staged(StagedDestination):
    name = "staged"

    def writer(self, task):
        return None

    def publish(self, delivery):
        return None
"""


def _told(lab: Lab) -> tuple[object, ...]:
    error = lab.run().error
    assert error is not None
    return error.code, error.fatal, error.node


@pytest.mark.parametrize(
    ("split", "read"),
    [
        ("None", "yield records"),
        ("Split(start, 0)", "yield records"),
        ("[(start, end)]", "yield records"),
        ("[Split(start, None)]", "yield records"),
        ("[Split(start, 5)]", "yield records"),
        ("[Split(start, 0), Split(start, -1)]", "yield records"),
        ("[Split(start, 0, 2), Split(start, 1)]", "yield records"),
        ("[Split(start, 0, 2), Split(start, 3)]", "yield records"),
        ("[Split(start, 0, detail={'last': object()})]", "yield records"),
        ("[Split(start, 0)]", "yield records[0]"),
        ("[Split(start, 0)]", "return None"),
        ("[Split(start, 0)]", "return records"),
        ("[Split(start, 0)]", "yield (record for record in records)"),
        ("[Split(start, 0)]", "yield [{'i': 1}]"),
    ],
)
@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_source_that_gives_something_else_is_named(lab: Lab, split: str, read: str, log: str) -> None:
    lab.write("plugins/mistaken.py", [SOURCE.format(split=split, read=read)])
    given = {"id": "in", "type": "source", "plugin": "mistaken", "settings": {}}
    lab.pipeline(connectors=[given, destination()], delivery={"log": log})
    assert _told(lab) == ("plugin.result_invalid", True, "p:in")


def test_an_error_of_verify_names_its_source(lab: Lab) -> None:
    text = SOURCE.format(split="[Split(start, 0)]", read="yield records")
    lab.write("plugins/mistaken.py", [f"{text}\n    def verify(self, start, end):\n        raise ValueError('no')\n"])
    given = {"id": "in", "type": "source", "plugin": "mistaken", "settings": {}}
    lab.pipeline(connectors=[given, destination()])
    assert _told(lab) == ("connector.failed", False, "p:in")


def test_an_error_of_read_itself_names_its_source(lab: Lab) -> None:
    lab.write("plugins/mistaken.py", [SOURCE.format(split="[Split(start, 0)]", read="raise ValueError('no')")])
    given = {"id": "in", "type": "source", "plugin": "mistaken", "settings": {}}
    lab.pipeline(connectors=[given, destination()])
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("connector.failed", "p:in")
    assert error.message == "ValueError: no, in plugins/mistaken.py:20"


@pytest.mark.parametrize(
    ("plugin", "sender", "receipts"),
    [
        ("direct", "None", "None"),
        ("direct", "object()", "None"),
        ("direct", "Post()", "5"),
        ("direct", "Post()", "[True]"),
        ("direct", "Post()", "[(first, None)]"),
        ("direct", "Post()", "[Receipt(first, 'no')]"),
        ("staged", "Post()", "None"),
    ],
)
def test_a_destination_that_gives_something_else_is_named(lab: Lab, plugin: str, sender: str, receipts: str) -> None:
    lab.write("plugins/mine.py", [DESTINATION.format(sender=sender, receipts=receipts)])
    lab.write("in.jsonl", ["a"])
    taking = {"id": "out", "type": "destination", "plugin": plugin, "settings": {}}
    lab.pipeline(connectors=[source(), taking])
    assert _told(lab) == ("plugin.result_invalid", True, "p:out")


WRITER = """
from conduit_dagster.sdk import Nack, RecordWriter, Refusal, Rejected, StagedDestination, staged_records


class Lines(RecordWriter):
    def write(self, records):
        super().write(records)
        return {refused}


class Staged(StagedDestination):
    name = "staged"

    def writer(self, task):
        return Lines(task)

    def publish(self, delivery):
        {publish}
"""


@pytest.mark.parametrize(
    ("refused", "publish"),
    [
        ("'no'", "return {}"),
        ("[0]", "return {}"),
        ("[Refusal(7, Nack('no', 'no'))]", "return {}"),
        ("[Refusal(0, 'no')]", "return {}"),
        ("None", "raise Rejected(0, Nack('no', 'no'))"),
    ],
)
def test_a_refusal_that_can_not_be_taken_names_its_destination(lab: Lab, refused: str, publish: str) -> None:
    """Without ``divisible``, one of ``publish`` was repeated for ever."""
    lab.write("plugins/mine.py", [WRITER.format(refused=refused, publish=publish)])
    lab.write("in.jsonl", ["a"])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "staged", "settings": {}}])
    assert _told(lab) == ("plugin.result_invalid", True, "p:out")


def test_a_sender_that_exits_is_named(lab: Lab) -> None:
    """It was an error of Spark, for which to look with ``doctor``."""
    lab.write("plugins/mine.py", [DESTINATION.format(sender="Post()", receipts="exit('no')")])
    lab.write("in.jsonl", ["a"])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "direct", "settings": {}}])
    assert _told(lab) == ("connector.failed", False, "p:out")


ENDS_BADLY = """
from conduit_dagster.sdk import DirectDestination, Sender


class Post(Sender):
    def send(self, records, first):
        with open({file!r}, "a") as file:
            file.writelines(f"{{record.position}}\\n" for record in records)

    def finish(self):
        raise ValueError("no goodbye")


class Direct(DirectDestination):
    name = "direct"

    def sender(self, task):
        return Post()
"""


def test_a_sender_that_fails_after_its_last_receipt_is_told_and_sends_nothing_again(lab: Lab) -> None:
    """The error was about the record behind the last one, which is not there."""
    lab.write("plugins/mine.py", [ENDS_BADLY.format(file=str(lab.root / "sent"))])
    lab.write("in.jsonl", ["a", "b"])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "direct", "settings": {}}])
    error = lab.run().error
    assert error is not None and "ValueError: no goodbye, in plugins/mine.py:" in error.message
    assert error.node == "p:out"
    assert lab.run().error is None
    assert len(lab.lines("sent")) == 2


@pytest.mark.parametrize("given", ["None", "(record for record in records)", "5"])
def test_a_block_that_is_no_list_nacks_its_records(lab: Lab, given: str) -> None:
    text = "from conduit_dagster.sdk import Processor\n\n\nclass Mine(Processor):\n    name = 'mine'\n"
    lab.write("plugins/mine.py", [f"{text}    def process_block(self, records):\n        return {given}\n"])
    lab.write("in.jsonl", ["a"])
    lab.pipeline(connectors=[source(), destination()], processors=[processor("a", "mine")])
    assert _told(lab) == ("processor.result_type", True, "p:a")


def test_an_error_of_deliver_is_told_with_its_class(lab: Lab) -> None:
    """That of a record without a field was the field's name alone."""
    text = "from conduit_dagster.sdk import DriverDestination\n\n\nclass Mine(DriverDestination):\n    name = 'mine'\n"
    body = "    def deliver(self, records, delivery):\n        return [record.after['id'] for record in records]\n"
    lab.write("plugins/mine.py", [text + body])
    lab.write("in.jsonl", [{"i": i} for i in range(2)])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "mine", "settings": {}}], processors=[DECODE])
    errors = [lab.run().error for _ in range(2)]
    assert [error and error.code for error in errors] == ["delivery.bulk_failed", "delivery.record_failed"]
    assert all(error and error.message.endswith(": KeyError: 'id', in plugins/mine.py:7") for error in errors)


REFUSES = """
from conduit_dagster.sdk import DriverDestination, Nack, Rejected

class Refuses(DriverDestination):
    name = "refuses"

    def deliver(self, records, delivery):
        raise Rejected({given})
"""


@pytest.mark.parametrize("given", ["-1, Nack('no', 'no')", "3, Nack('no', 'no')", "'1', Nack('no', 'no')", "0, 'no'"])
def test_a_refusal_of_a_record_that_is_none_of_the_delivery(lab: Lab, given: str) -> None:
    """Counted from the end, -1 made the last record a dead letter, and the others were sent."""
    lab.write("plugins/refuses.py", [REFUSES.format(given=given)])
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    out = destination() | {"plugin": "refuses", "settings": {}}
    lab.pipeline(connectors=[source(), out], **{"dead-letter-queue": queue()})
    assert _told(lab) == ("plugin.result_invalid", True, "p:out")
    assert lab.letters() == []


def test_a_nack_of_other_types_than_text_is_told_as_text(lab: Lab) -> None:
    """An HTTP status and a document, for example."""
    lab.write("plugins/refuses.py", [REFUSES.format(given="0, Nack(422, {'field': 'id'})")])
    lab.write("in.jsonl", ["a"])
    out = destination() | {"plugin": "refuses", "settings": {}}
    lab.pipeline(connectors=[source(), out], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert [(node, reason) for node, reason, _ in lab.letters()] == [("p:out", "{'field': 'id'}")]


DELIVERED = """
from conduit_dagster.sdk import DriverDestination, Nack, Receipt, Refusal, Rejected


class Mine(DriverDestination):
    name = "mine"

    def deliver(self, records, delivery):
        return {given}
"""


@pytest.mark.parametrize(
    "given",
    [
        "Nack('no', 'no')",
        "Rejected(0, Nack('no', 'no'))",
        "[Refusal(0, Nack('no', 'no'))]",
        "[Receipt(0, Nack('n', 'n'))]",
    ],
)
def test_a_refusal_that_deliver_returns_is_no_success(lab: Lab, given: str) -> None:
    """The record counted as delivered, and was acked."""
    lab.write("plugins/mine.py", [DELIVERED.format(given=given)])
    lab.write("in.jsonl", ["a"])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "mine", "settings": {}}])
    assert _told(lab) == ("plugin.result_invalid", True, "p:out")


def test_what_else_deliver_returns_is_left_alone(lab: Lab) -> None:
    lab.write("plugins/mine.py", [DELIVERED.format(given="sum(1 for _ in records)")])
    lab.write("in.jsonl", ["a"])
    lab.pipeline(connectors=[source(), destination() | {"plugin": "mine", "settings": {}}])
    assert lab.run().error is None

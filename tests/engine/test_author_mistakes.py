"""What an author's code may return by mistake becomes a nack: no step is prepared that can't be published."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from lab.support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.engine.operate.letters import parse_edit
from conduit_dagster.state.tables import steps

DIRECT = {"id": "out", "type": "destination", "plugin": "chaos.direct", "settings": {"path": "./out.jsonl"}}
MISTAKES = {
    "metadata that is no text": "r.metadata['n'] = 1",
    "metadata of None": "r.metadata['n'] = None",
    "no metadata": "r.metadata = None",
    "a key that is a number": "r.key = 5",
    "a payload that is a list": "r.after = [1]",
    "a payload that is text": "r.after = 'text'",
    "a document in itself": "r.after['me'] = r.after",
    "an endless number": "r.after['n'] = 10 ** 5000",
    "an object": "r.after['n'] = object()",
    "an object as a key": "r.after[object()] = 1",
}


def states(lab: Lab) -> set[str]:
    with lab.store() as database, database.connect() as connection:
        return set(connection.execute(sa.select(steps.c.state)).scalars())


def through(lab: Lab, body: str, out: dict[str, Any], per: str = "record", *after: Any) -> None:
    """Create a pipeline with a function of the project in it."""
    (lab.root / "own.py").write_text(body)
    lab.pipeline(
        connectors=[source(), out],
        processors=[DECODE, processor("own", "python", function="own:f", per=per), *after],
        **{"dead-letter-queue": queue()},
    )


def each_once(mistakes: Iterable[str]) -> str:
    """Return statements that make one mistake in each record whose number is odd."""
    return "\n".join(f"    if number == {2 * k + 1}: {mistake}" for k, mistake in enumerate(mistakes))


@pytest.mark.parametrize("out", [DIRECT, destination()], ids=["direct", "staged"])
def test_each_is_a_nack_of_its_record(lab: Lab, out: dict[str, Any]) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(2 * len(MISTAKES) + 1)])
    through(lab, f"def f(r):\n    number = r.after['i']\n{each_once(MISTAKES.values())}\n    return r\n", out)
    assert (lab.run().error, states(lab)) == (None, {"done"})
    assert lab.documents("out.jsonl") == [{"i": 2 * k} for k in range(len(MISTAKES) + 1)]
    assert [node for node, _, _ in lab.letters()] == ["p:own"] * len(MISTAKES)


EXITS = ["import sys; sys.exit('no')", "import asyncio; raise asyncio.CancelledError('no')"]


@pytest.mark.parametrize("per", ["record", "arrow"])
@pytest.mark.parametrize("exits", EXITS, ids=["SystemExit", "CancelledError"])
def test_a_function_that_exits_nacks_its_record(lab: Lab, exits: str, per: str) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(3)])
    payloads = "[given.after]" if per == "record" else "given.to_pylist()"
    body = f"def f(given):\n    if any(row['i'] == 1 for row in {payloads}):\n        {exits}\n    return given\n"
    through(lab, body, destination(), per)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 0}, {"i": 2}]
    [(node, reason, payload)] = lab.letters()
    assert (node, payload) == ("p:own", {"i": 1}) and reason.endswith("no")


@pytest.mark.parametrize("exits", EXITS, ids=["SystemExit", "CancelledError"])
def test_a_function_of_blocks_that_exits_fails_the_step(lab: Lab, exits: str) -> None:
    lab.write("in.jsonl", [{"i": 0}])
    through(lab, f"def f(rs):\n    {exits}\n", destination(), "block")
    error = lab.run().error
    assert error is not None and (error.code, error.node) == ("processor.failed", "p:own")


@pytest.mark.parametrize("out", [DIRECT, destination()], ids=["direct", "staged"])
@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ("for r in list(rs):\n        if r.after['i'] == 0: rs.remove(r)", True),
        ("rs.sort(key=lambda r: -r.after['i'])", True),
        ("rs.append(rs[0])", True),
        ("rs = rs[::-1]", True),
        ("pass", False),
    ],
)
def test_a_list_in_another_order_is_refused_as_a_whole(
    lab: Lab, body: str, is_refused: bool, out: dict[str, Any]
) -> None:
    """Places pair results with the records that they come from: one would be lost, another delivered twice."""
    every = [{"i": i} for i in range(3)]
    lab.write("in.jsonl", every)
    through(lab, f"def f(rs):\n    {body}\n    return rs\n", out, "block")
    assert lab.run().error is None
    found = lab.documents("out.jsonl"), [payload for _, _, payload in lab.letters()]
    assert found == (([], every) if is_refused else (every, []))


SHARED = "from conduit_dagster.record import Record\nONE, R = {'a': 1}, Record('x', {}, {'a': 1})\n"


@pytest.mark.parametrize(
    ("body", "per"),
    [
        ("def f(r):\n    r.after = ONE\n    return r\n", "record"),
        ("def f(r):\n    r.key = r.before = r.after = ONE\n    return r\n", "record"),
        ("def f(r):\n    return R\n", "record"),
        ("def f(rs):\n    return [R for _ in rs]\n", "block"),
        ("def f(r):\n    return [R, r]\n", "record"),
    ],
)
def test_records_share_no_document_that_a_function_returns_for_each(lab: Lab, body: str, per: str) -> None:
    lab.write("in.jsonl", [{"a": 1} for _ in range(3)])
    number = processor("number", "field.set", field=".Payload.After.at", expression="position")
    through(lab, SHARED + body, destination(), per, number)
    assert lab.run().error is None
    found = lab.documents("out.jsonl")
    assert len({row["at"] for row in found}) == 3 and [*found[-1]] == ["a", "at"]


@pytest.mark.parametrize("field", [".Payload.After.in.at", ".Payload.After.in.deep.at"])
def test_a_change_inside_a_document_that_records_share_is_one_record_s(lab: Lab, field: str) -> None:
    lab.write("in.jsonl", [{"a": i} for i in range(3)])
    body = "IN = {'deep': {}}\ndef f(r):\n    r.after['in'] = IN\n    return r\n"
    number = processor("number", "field.set", field=field, expression="after.a")
    through(lab, body, destination(), "record", number, processor("name", "field.rename", mapping=f"{field}:was"))
    assert lab.run().error is None
    found = [row["in"].get("was", row["in"]["deep"].get("was")) for row in lab.documents("out.jsonl")]
    assert found == [0, 1, 2]


def test_a_table_has_the_fields_of_all_records(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 0}, {"i": 1, "note": "kept"}])
    through(lab, "def f(table):\n    return table\n", destination(), "arrow")
    assert lab.run().error is None
    assert [row.get("note") for row in lab.documents("out.jsonl")] == [None, "kept"]


def test_an_error_given_as_a_message_is_its_text(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 0}])
    body = (
        "from conduit_dagster.sdk import ProcessError\ndef f(r):\n    raise ProcessError(ValueError('why'), code=5)\n"
    )
    through(lab, body, destination())
    assert lab.run().error is None
    assert lab.letters()[0][1].endswith("why")


SOURCE = """
from conduit_dagster.sdk import Source, Split
from conduit_dagster.record import Record

class Mine(Source):
    \"\"\"Gives what no step can hold, each time between two records as they should be.\"\"\"

    name = "mine"

    def initial(self): return 0
    def latest(self, start, limit, horizon=None): return LAST
    def split(self, start, end, n): return [Split(start, 0, end - start, 10, {"to": end})] if end > start else []
    def read(self, split, options):
        records = [Record(n, {"n": "n"}, {"i": n}) for n in range(split.start + 1, split.detail["to"] + 1)]
        for r in records:
            mistake(r, r.after["i"] - 1)
        yield records

def mistake(r, number):
MISTAKES
    return r
"""


def mine(lab: Lab, *mistakes: str, text: str = SOURCE) -> dict[str, Any]:
    """Write a plugin that makes each mistake once, the first one in its second record; return a source of it."""
    body = text.replace("LAST", str(2 * len(mistakes) + 1)).replace("MISTAKES", each_once(mistakes))
    (lab.root / "plugins").mkdir()
    (lab.root / "plugins" / "mine.py").write_text(body)
    return {"id": "in", "type": "source", "plugin": "mine", "settings": {}}


OF_SOURCES = {
    **MISTAKES,
    "an operation that there is not": "r.operation = 'insert'",
    "metadata with half a character": "r.metadata['n'] = '\\ud800'",
    "a value that is half a character": "r.after['n'] = '\\ud800'",
    "a key of metadata that is half a character": "r.metadata['\\ud800'] = '1'",
}
SOUND = [{"i": 2 * k + 1} for k in range(len(OF_SOURCES) + 1)]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_records_of_a_source_that_no_step_can_hold(lab: Lab, log: str) -> None:
    """The other records go on; so do all records if it is processed, and logged, before anything is sent."""
    own = mine(lab, *OF_SOURCES.values())
    (lab.root / "own.py").write_text("def f(r): return r\n")
    lab.pipeline(
        connectors=[own, DIRECT],
        processors=[processor("own", "python", function="own:f")],
        delivery={"log": log},
        **{"dead-letter-queue": queue()},
    )
    assert (lab.run().error, states(lab)) == (None, {"done"})
    assert lab.documents("out.jsonl") == SOUND
    assert len(lab.letters()) == len(OF_SOURCES)


def test_records_of_a_source_share_no_document(lab: Lab) -> None:
    own = mine(
        lab, "pass", text=SOURCE.replace('{"i": n})', "ONE)").replace("class Mine", "ONE = {'i': 2}\nclass Mine")
    )
    number = processor("number", "field.set", field=".Payload.After.at", expression="position")
    lab.pipeline(connectors=[own, destination()], processors=[number])
    assert lab.run().error is None
    assert [row["at"] for row in lab.documents("out.jsonl")] == ["1", "2", "3"]


UNCOUNTED = SOURCE.replace("Split(start, 0, end - start, 10,", "Split(start, 0, None, 10,")
ONCE = SOURCE.replace('name = "mine"', 'name = "mine"\n    replayable = False')


@pytest.mark.parametrize("text", [UNCOUNTED, ONCE], ids=["uncounted", "read once"])
def test_records_of_a_source_that_are_logged_before_a_step_reads_them(lab: Lab, text: str) -> None:
    own = mine(lab, *OF_SOURCES.values(), text=text)
    lab.pipeline(connectors=[own, DIRECT], delivery={"log": "records"}, **{"dead-letter-queue": queue()})
    assert (lab.run().error, states(lab)) == (None, {"done"})
    assert lab.documents("out.jsonl") == SOUND
    assert [node for node, _, _ in lab.letters()] == ["p:in"] * len(OF_SOURCES)


@pytest.mark.parametrize("processors", [[], [processor("mark", "field.set", field=".Metadata.m", value="1")]])
def test_a_record_that_no_step_can_hold_is_not_joined(lab: Lab, processors: list[Any]) -> None:
    own = {**mine(lab, "r.after['n'] = object()"), "processors": processors}
    lab.write("other.jsonl", [{"o": o} for o in range(3)])
    other = {**source("./other.jsonl"), "id": "other", "processors": [DECODE]}
    lab.pipeline(connectors=[own, other, destination()], **{"fan-in": "join", "dead-letter-queue": queue()})
    assert (lab.run().error, states(lab)) == (None, {"done"})
    assert lab.documents("out.jsonl") == [{"in": {"i": 1}, "other": {"o": 0}}, {"in": {"i": 3}, "other": {"o": 1}}]
    assert len(lab.letters()) == 1


@pytest.mark.parametrize("start", ["source", "node"])
@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_replay_mends_what_was_nacked_at_its_source(lab: Lab, log: str, start: Literal["source", "node"]) -> None:
    own = mine(lab, "r.operation = 'insert'")
    lab.pipeline(connectors=[own, destination()], delivery={"log": log}, **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert lab.replay(start=start)["replayed"] == 0
    edited = lab.replay(start=start, edits=[parse_edit(".Operation='create'")])
    assert edited["replayed"] == 1
    assert [one["i"] for one in lab.documents("out.jsonl")] == [1, 3, 2]


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize("mistake", ["r.after['n'] = object()", "r.metadata = None", "r.after['n'] = 10 ** 5000"])
def test_what_is_shown_of_a_record_is_not_replayed(lab: Lab, mistake: str, log: str) -> None:
    own = mine(lab, mistake)
    lab.pipeline(connectors=[own, destination()], delivery={"log": log}, **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert lab.replay()["replayed"] == 0
    assert [one["i"] for one in lab.documents("out.jsonl")] == [1, 3]


TELLING = """
from pydantic import SecretStr
from conduit_dagster.sdk import Processor, ProcessorSettings

class Settings(ProcessorSettings):
    a: SecretStr

class Telling(Processor):
    name = "telling"
    Settings = Settings
    def process(self, record):
        raise ValueError("refused: " + self.settings.a.get_secret_value())
"""


def test_a_secret_setting_is_masked_whatever_it_is_called(lab: Lab) -> None:
    lab.write("plugins/telling.py", [TELLING])
    lab.write("in.jsonl", [{"i": 1}])
    telling = processor("telling", "telling", a="open sesame")
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, telling], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    assert [reason for _, reason, _ in lab.letters()] == ["ValueError: refused: ***"]

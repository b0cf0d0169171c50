"""A project's own source, processor and destination in ``plugins/``: found, checked and run like the built-in ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.support import DECODE, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

MINE = '''
import json
from pathlib import Path

from pydantic import Field

from conduit_dagster.sdk import ConnectorSettings, DriverDestination, Source, Split
from conduit_dagster.sdk import DROP, ProcessError, Processor, ProcessorSettings
from conduit_dagster.record import Record


class CounterSettings(ConnectorSettings):
    upto: int


class Counter(Source):
    """Counts. Its position is the last number."""

    name = "counter"
    Settings = CounterSettings

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return min(self.settings.upto, start + limit.records)

    def split(self, start, end, n):
        middle = (start + end) // 2
        return [
            Split(low, low - start, high - low, detail={"to": high})
            for low, high in ((start, middle), (middle, end))
            if low < high
        ]

    def read(self, split, options):
        yield [Record(i, {}, {"n": i}) for i in range(split.start + 1, split.detail["to"] + 1)]

    def ack(self, upto, generation):
        with Path(self.context.resolve("acks.txt")).open("a") as file:
            file.write(f"{generation} {upto}\\n")


class HalveSettings(ProcessorSettings):
    by: int = Field(2, gt=0)


class Halve(Processor):
    """Divides; refuses multiples of seven, drops multiples of five."""

    name = "halve"
    Settings = HalveSettings

    def process(self, record):
        n = record.after["n"]
        if n % 7 == 0:
            raise ProcessError("seven", code="mine.seven")
        if n % 5 == 0:
            return DROP
        record.metadata["seen"] = "yes"
        record.after["n"] = n / self.settings.by
        return record


class Shelf(DriverDestination):
    """Keeps each delivery under its hash."""

    name = "shelf"

    def deliver(self, records, delivery):
        rows = [[record.after["n"], record.metadata.get("seen")] for record in records]
        folder = Path(self.context.resolve("shelf"))
        folder.mkdir(exist_ok=True)
        (folder / f"{delivery.step}-{delivery.hash}.json").write_text(json.dumps(rows))
'''


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("plugins/mine.py", [MINE])
    return lab


def build(lab: Lab, upto: int = 20, **halve: str) -> None:
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "counter", "settings": {"upto": str(upto)}},
            {"id": "shelf", "type": "destination", "plugin": "shelf"},
            destination(),
            {"id": "whole", "type": "destination", "plugin": "file", "settings": {"path": "./whole.jsonl"}},
        ],
        processors=[processor("halve", "halve", **halve)],
        delivery={"batch-size": 8},
        **{"dead-letter-queue": queue()},
    )


def test_one_of_each_works(lab: Lab) -> None:
    """Positions, acks, nacks with the author's code, drops and the delivery hash, over several steps."""
    build(lab)
    result = lab.run()
    assert result.error is None
    wanted = [n / 2 for n in range(1, 21) if n % 5 and n % 7]
    assert [row["n"] for row in lab.documents("out.jsonl")] == wanted
    files = sorted((lab.root / "shelf").iterdir(), key=lambda path: int(path.name.split("-")[0]))
    assert [row for file in files for row in json.loads(file.read_text())] == [[n, "yes"] for n in wanted]
    assert [line.split()[1] for line in lab.lines("acks.txt")] == ["0", "8", "16", "20"]
    assert lab.letters() == [("p:halve", "seven", {"n": 7}), ("p:halve", "seven", {"n": 14})]
    assert lab.documents("dead.jsonl")[0]["metadata"]["conduit.dlq.nack.code"] == "mine.seven"
    assert result.progress.filtered_by == {"p:halve": 4}
    metadata = lab.documents("whole.jsonl")[0]["metadata"]
    assert set(metadata) == {"conduit.source.connector.id", "opencdc.readAt", "seen"}


def test_a_changed_plugin_is_used_by_the_next_run(lab: Lab) -> None:
    """Also by a worker that has already run the old text."""
    build(lab, 8)
    lab.run()
    lab.write("plugins/mine.py", [MINE.replace("n / self.settings.by", "n * 1000")])
    build(lab, 9)
    lab.run()
    assert lab.documents("out.jsonl")[-1] == {"n": 9000}


def test_bad_settings_of_a_plugin_are_findings(lab: Lab) -> None:
    build(lab, by="0")
    [finding] = [finding for finding in lab.catalogue().findings if finding.is_error]
    assert (finding.code, finding.path) == ("setting.invalid", "/pipelines/0/processors/0/settings/by")


def test_a_misspelt_plugin_names_the_nearest(lab: Lab) -> None:
    lab.pipeline(
        connectors=[
            {"id": "in", "type": "source", "plugin": "countr", "settings": {"upto": "1"}},
            destination(),
        ],
        processors=[processor("a", "halv"), processor("b", "field.sett", field=".Key")],
    )
    fixes = [finding.fix for finding in lab.catalogue().findings if finding.code == "plugin.unknown"]
    assert fixes == ["did you mean counter?", "did you mean halve?", "did you mean field.set?"]


def test_a_broken_plugin_file_does_not_hide_the_others(lab: Lab) -> None:
    lab.write("plugins/broken.py", ["import nothing_like_this"])
    build(lab)
    codes = [finding.code for finding in lab.catalogue().findings]
    assert codes == ["plugin.broken"]
    assert lab.catalogue().get("p") is not None


ODD = """
from conduit_dagster.sdk import ConnectorSettings, Source, Split
from conduit_dagster.record import Record

NAN, INF = float("nan"), float("inf")


class Odd(Source):
    name = "odd"
    Settings = ConnectorSettings

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 2

    def split(self, start, end, n):
        return [Split(start, 0, end - start)] if end > start else []

    def read(self, split, options):
        records = [
            Record(1, {}, {"n": NAN, "l": [INF, {"x": -INF, "y": 1.5}]}, {"k": NAN}),
            Record(2, {}, {"n": 2}, b"k", {"n": INF}, "update"),
        ]
        yield records[split.start:]
"""


PAYLOADS = """
import math

from conduit_dagster.sdk import Block, ConnectorSettings, PayloadIds, Payloads, Record, Source, Split


class Lists(Source):
    name = "lists"
    Settings = ConnectorSettings
    sets_metadata = True
    gives_json = GIVES_JSON

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 3

    def split(self, start, end, n):
        return [Split(start, 0, end - start)] if end > start else []

    def read(self, split, options):
        assert options.payloads
        ids = PayloadIds([1, 2, 3], [{"k": n} for n in (1, 2, 3)])
        payloads = [{"n": n} for n in (1, math.nan if not self.gives_json else 2, 3)]
        yield Block(Payloads(payloads, Record(0, {"m": "x"}), ids), lambda i: i + 1)
"""


def test_a_source_may_give_payloads(lab: Lab) -> None:
    """Each branch has its own documents of keys and payloads."""
    lab.write("plugins/lists.py", [PAYLOADS.replace("GIVES_JSON", "True")])
    add = processor("add", "field.set", field=".Key.k", expression="key.k + 100")
    double = processor("double", "field.set", field=".Payload.After.n", expression="after.n * 2")
    outputs = [
        {**destination(name, processors=processors), "settings": {"path": f"./{name}.jsonl"}}
        for name, processors in (("keys", [add]), ("doubled", [double]), ("plain", []))
    ]
    source = {"id": "in", "type": "source", "plugin": "lists", "settings": {}}
    lab.pipeline(connectors=[source, *outputs])
    assert lab.run().error is None
    found = {name: lab.documents(f"{name}.jsonl") for name in ("keys", "doubled", "plain")}
    assert [(row["key"]["k"], row["payload"]["after"]["n"]) for row in found["keys"]] == [(101, 1), (102, 2), (103, 3)]
    assert [(row["key"]["k"], row["payload"]["after"]["n"]) for row in found["doubled"]] == [(1, 2), (2, 4), (3, 6)]
    assert [(row["key"]["k"], row["payload"]["after"]["n"]) for row in found["plain"]] == [(1, 1), (2, 2), (3, 3)]
    assert {row["metadata"]["m"] for row in found["plain"]} == {"x"}


def test_payloads_that_nobody_checked_stop_the_pipeline(lab: Lab) -> None:
    """NaN would become null."""
    lab.write("plugins/lists.py", [PAYLOADS.replace("GIVES_JSON", "False")])
    source = {"id": "in", "type": "source", "plugin": "lists", "settings": {}}
    lab.pipeline(connectors=[source, destination()])
    error = lab.run().error
    assert error is not None and (error.code, error.node, error.fatal) == ("source.payloads_unchecked", "p:in", True)


@pytest.mark.parametrize("log", ["positions", "records"])
def test_numbers_that_json_lacks_become_text_not_null(lab: Lab, log: str) -> None:
    """JSON's encoder would write null for them: a value lost without notice."""
    lab.write("plugins/odd.py", [ODD])
    whole = {"path": "./out.jsonl", "sdk.record.format": "opencdc/json"}
    connectors = [{"id": "in", "type": "source", "plugin": "odd", "settings": {}}, {**destination(), "settings": whole}]
    lab.pipeline(connectors=connectors, delivery={"log": log})
    assert lab.run().error is None
    first, second = lab.documents("out.jsonl")
    assert first["payload"]["after"] == {"n": "NaN", "l": ["Infinity", {"x": "-Infinity", "y": 1.5}]}
    assert first["key"] == {"k": "NaN"}
    assert second["payload"] == {"before": {"n": "Infinity"}, "after": {"n": 2}}


def test_a_letter_shows_the_number_that_json_lacks(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    (lab.root / "odd.py").write_text("def odd(record):\n    record.after['n'] = float('nan')\n    return record\n")
    odd = processor("odd", "python", function="odd:odd")
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE, odd], **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    [letter] = lab.documents("dead.jsonl")
    assert letter["payload"]["after"]["payload"]["after"] == {"i": 1, "n": "NaN"}


AUDIT = """
from pathlib import Path

from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorSettings, Source, Split


class AuditSettings(ConnectorSettings):
    log: str
    dropped: str = ""


class Audit(Source):
    name = "audit"
    Settings = AuditSettings

    @property
    def unit(self):
        return {"plugin": self.name, "log": self.settings.log, "options": {"dropped": self.settings.dropped}}

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return min(3, start + limit.records)

    def split(self, start, end, n):
        return [Split(start, 0, end - start, detail={"to": end})]

    def read(self, split, options):
        named = self.settings.log + self.settings.dropped
        yield [Record(i, {}, {"s": f"{named}{i}"}) for i in range(split.start + 1, split.detail["to"] + 1)]
"""


@pytest.mark.parametrize("log", ["positions", "records"])
@pytest.mark.parametrize(
    ("first", "second"),
    [({"log": "a"}, {"log": "b"}), ({"log": "a", "dropped": "1"}, {"log": "a", "dropped": "2"})],
)
def test_the_identity_of_data_may_have_any_names(
    tmp_path: Path, spark: SparkSession, log: str, first: dict[str, str], second: dict[str, str]
) -> None:
    """Also one that the state store uses beside it: other data is read from its beginning, the first goes on."""
    lab = Lab(tmp_path, spark)
    lab.write("plugins/audit.py", [AUDIT])
    for settings in (first, second, first):
        given = {"id": "in", "type": "source", "plugin": "audit", "settings": settings}
        lab.pipeline(connectors=[given, destination()], delivery={"log": log})
        assert lab.run().error is None
    names = ["".join(settings.values()) for settings in (first, second)]
    assert [row["s"] for row in lab.documents("out.jsonl")] == [f"{name}{i}" for name in names for i in (1, 2, 3)]


@pytest.mark.parametrize("name", ["join", "catch-up", "replay"])
def test_a_source_may_not_be_named_as_one_of_the_engine(tmp_path: Path, name: str) -> None:
    lab = Lab(tmp_path)
    lab.write("plugins/audit.py", [AUDIT.replace('name = "audit"', f'name = "{name}"')])
    [finding] = [one for one in lab.catalogue().findings if one.code == "plugin.broken"]
    assert finding.file == "plugins/audit.py"
    assert finding.message.endswith(
        f"the source Audit can't be named {name}: the engine's own are called catch-up, join, replay"
    )

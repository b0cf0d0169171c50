"""The plugins of ``docs/plugins.md``, as they stand there, in real pipelines."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lab.http_server import QuietHandler, serving
from lab.modules import ROOT
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str, *words: str) -> list[str]:
    """Return the page's blocks in a language that have all of these words."""
    found = [text for name, text in BLOCKS.findall(PAGE) if name == language]
    return [text for text in found if all(word in text for word in words)]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    """A project with all plugins of the page, a file each."""
    lab = Lab(tmp_path, spark)
    (lab.root / "plugins").mkdir()
    for text in blocks("python", "    name = "):
        [name] = re.findall(r'^    name = "(\w+)"', text, re.MULTILINE)
        (lab.root / "plugins" / f"{name}.py").write_text(text)
    return lab


def build(lab: Lab, reads: dict[str, Any], writes: dict[str, Any], *processors: Any) -> None:
    lab.pipeline(connectors=[reads, writes], processors=list(processors), **{"dead-letter-queue": queue()})


def test_all_of_them_are_tried_here(lab: Lab) -> None:
    names = {path.stem for path in (lab.root / "plugins").iterdir()}
    assert names == {"cap", "receipt", "mailbox", "shelf", "hook", "ledger"}


def test_the_page_says_how_structures_are_written(lab: Lab) -> None:
    [text] = blocks("python", "class Settings", "headers.*")
    base = "class Tagged(GeneratorSource):\n    name = 'tagged'\n    Settings = Settings"
    made = f"{text}\nfrom conduit_dagster.connectors.generator.source import GeneratorSource\n\n{base}\n"
    (lab.root / "plugins" / "tagged.py").write_text(made)
    settings = {"topics": "a, b", "tls.ca": "ca.pem", "token": "t0ken", "headers.X-Tenant": "blue"}
    build(lab, {"id": "in", "type": "source", "plugin": "tagged", "settings": settings}, destination())
    catalogue = lab.catalogue()
    assert catalogue.findings == []
    [bound] = catalogue.bound
    given: Any = bound.compiled.sources[0].source.settings
    assert (given.topics, given.ca, given.headers) == (["a", "b"], "ca.pem", {"X-Tenant": "blue"})
    assert "t0ken" not in repr(given)


def ledger(lab: Lab) -> dict[int, dict[str, Any]]:
    with closing(sqlite3.connect(lab.root / "ledger.db")) as db:
        return {number: json.loads(text) for number, text in db.execute("select id, document from orders")}


@pytest.mark.parametrize("point", [None, "after-publish", "after-nack", "before-child", "before-done"])
def test_the_ledger_has_each_row_once_and_refuses_a_duplicate(lab: Lab, crashes: Crashes, point: str | None) -> None:
    [text] = blocks("yaml", "ledgered")
    (lab.root / "pipelines").mkdir()
    (lab.root / "pipelines" / "p.yaml").write_text(text.replace("id: ledgered", "id: p"))
    lab.write("numbers.jsonl", [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 3}])
    if point:
        crashes(lab, point)
    assert lab.run().error is None
    assert list(ledger(lab)) == [1, 2, 3]
    assert len({row["receipt"] for row in ledger(lab).values()}) == 3
    assert [after["id"] for _, _, after in lab.letters()] == [1]
    assert lab.documents("dead.jsonl")[0]["metadata"]["conduit.dlq.nack.code"] == "ledger.refused"


def test_the_mailbox_removes_what_is_delivered(lab: Lab, crashes: Crashes) -> None:
    """Its messages are logged before a step reads them: a crash before the ack neither loses nor doubles any."""
    box = lab.root / "box"
    box.mkdir()
    for number in range(1, 4):
        (box / f"{number}.json").write_text(json.dumps({"i": number}))
    build(lab, {"id": "in", "type": "source", "plugin": "mailbox", "settings": {"path": "./box"}}, destination())
    crashes(lab, "before-done")
    assert len(list(box.iterdir())) == 3
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 1}, {"i": 2}, {"i": 3}]
    assert list(box.iterdir()) == []


def test_the_shelf_has_a_file_per_delivery(lab: Lab) -> None:
    lab.write("in.jsonl", [{"n": n} for n in (-1, 0, 5, 500)])
    build(lab, source(), {"id": "out", "type": "destination", "plugin": "shelf"}, DECODE, processor("cap", "cap"))
    assert lab.run().error is None
    [file] = (lab.root / "shelf").iterdir()
    assert json.loads(file.read_text()) == [{"n": 5}, {"n": 100}]
    assert lab.documents("dead.jsonl")[0]["metadata"]["conduit.dlq.nack.code"] == "cap.negative"


class Hooked(QuietHandler):
    """Takes posted records, and refuses the one with i = 2."""

    taken: list[tuple[str, Any]] = []

    def respond(self) -> None:
        """Take or refuse one."""
        posted = json.loads(self.body)
        if posted["i"] == 2:
            self.answer(422, b"not this one")
            return
        self.taken.append((self.headers["Idempotency-Key"], posted))
        self.answer(200, b"")


def test_the_hook_gets_each_record_with_a_key(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(1, 4)])
    Hooked.taken.clear()
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Hooked)) as server:
        settings = {"url": f"http://127.0.0.1:{server.server_port}"}
        hook = {"id": "out", "type": "destination", "plugin": "hook", "settings": settings}
        build(lab, source(), hook, DECODE)
        assert lab.run().error is None
    assert [posted["i"] for _, posted in Hooked.taken] == [1, 3]
    assert len({key for key, _ in Hooked.taken}) == 2
    assert [(node, after) for node, _, after in lab.letters()] == [("p:out", {"i": 2})]

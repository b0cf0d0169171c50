"""Dead letters of a prepared step whose staging is lost, and which nothing gives again: the ways out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.kills import crashing
from lab.operating import events
from lab.scripted import Script, scripted
from lab.support import DECODE, Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main
from conduit_dagster.recovery.errors import ConduitError

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": 0}, "bad", {"i": 2}])
    monkeypatch.chdir(tmp_path)
    return lab


def build(lab: Lab, *more: Any, name: str = "out") -> None:
    lab.pipeline(
        connectors=[source(), destination(name, path="./out.jsonl")],
        processors=[DECODE, *more],
        **{"dead-letter-queue": queue()},
    )


def refusal(lab: Lab) -> ConduitError:
    """Run; return the error, which has a fix."""
    error = lab.run().error
    assert error is not None and error.fix
    return error


def typed(fix: str | None, **words: str) -> list[str]:
    """Return the words of the command in a fix, without its program."""
    command = (fix or "").partition("conduit-dagster ")[2].partition(", and")[0].partition(": see")[0]
    return [words.get(word, word) for word in command.split()]


def test_a_queue_does_without_copies_that_can_t_be_rebuilt(
    lab: Lab, crashes: Crashes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fix was to give `dead_letters`, which has no id, another id: nothing led out."""
    build(lab)
    lab.run()
    lab.write("in.jsonl", [{"i": 3}, "bad too"], mode="a")
    crashes(lab, "after-prepare")
    assert main(["offsets", "mark", "p", "dead_letters", "4", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "offsets.dead_letters", "its staging is there"
    shutil.rmtree(lab.root / ".conduit" / "staging")
    changed = processor("no", "error", "after.i == 3", message="no")
    build(lab, changed)
    refused = refusal(lab)
    assert refused.code == "delivery.rebuild_differs"
    assert "give the destination (out) another id" in (refused.fix or "")
    assert main(["offsets", "mark", "p", "dead_letters", "3", "--json"]) == 1
    fix = json.loads(capsys.readouterr().out)["error"]["fix"]
    words = typed(refused.fix)
    assert words == ["offsets", "mark", "p", "dead_letters", "4"] == typed(fix)[:5]
    assert main([*words, "--dry-run"]) == 0 == main(words)
    assert "the queue gets no copy of 1 dead letter" in capsys.readouterr().out
    assert "dead_letters" not in (refusal(lab).fix or "")
    lab.write("in.jsonl", ["bad as well"], mode="a")
    build(lab, changed, name="again")
    assert lab.run().error is None
    assert [failed for *_, failed in lab.letters()] == ["bad", "bad as well"]
    assert events(lab, "marked")[0] | {"by": ""} == {
        "by": "", "consumer": "dead_letters", "source": "in", "step": 2, "records": 1, "first": 3, "last": 4,
    }  # fmt: skip
    lab.write("in.jsonl", [], mode="w")
    assert main(["dlq", "export", "p", "letters.jsonl"]) == 0
    assert len(lab.lines("letters.jsonl")) == 3, "the archive has what the queue lacks"


def test_letters_of_refused_records_whose_archive_is_lost_as_well(lab: Lab, script: Script) -> None:
    lab.pipeline(connectors=[source(), scripted()], processors=[DECODE], **{"dead-letter-queue": queue()})
    lab.write("in.jsonl", [{"i": 0}, {"i": 1}])
    script.says(refuse=[1])
    with crashing("after-nack"):
        lab.run()
    shutil.rmtree(lab.root / ".conduit" / "staging")
    shutil.rmtree(lab.root / ".conduit" / "log")
    refused = refusal(lab)
    assert refused.code == "dead_letters.damaged"
    assert main(typed(refused.fix)) == 0
    assert lab.run().error is None


def test_letters_whose_archive_was_lost_before_they_had_rows(lab: Lab, crashes: Crashes) -> None:
    """`dlq discard --part`, the fix, found none of them, and each run ended with the same error."""
    build(lab)
    crashes(lab, "after-prepare")
    [file] = (lab.root / ".conduit" / "log" / "p" / "~dead-letters").iterdir()
    file.unlink()
    refused = refusal(lab)
    assert refused.code == "dead_letters.damaged"
    words = typed(refused.fix, PIPELINE="p", WHY="gone")
    assert main([*words, "--dry-run"]) == 0 == main(words)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 0}, {"i": 2}]
    assert len(lab.letters()) == 1
    assert main(["dlq", "list", "p"]) == 0
    assert [event["letters"] for event in events(lab, "discarded")] == [1]

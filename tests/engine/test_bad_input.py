"""Bad input: one clear error with place and fix, or a nack with its reason; no record is lost."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.leases import change_owner, silence
from lab.support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.engine.report import RunResult
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.tables import consumers, sources

EXCLUDE = processor("drop", "field.exclude", fields=".Payload.After.nothing")


def failed(result: RunResult, code: str) -> str:
    """Assert that the run ended with this error, which has place and fix, without a stack trace."""
    assert result.error is not None
    assert result.error.code == code, result.error
    assert result.error.fix
    assert result.error.node
    assert "Traceback" not in result.error.message
    assert "\tat " not in result.error.message
    return result.error.message


def simple(lab: Lab, *processors: Any, **more: Any) -> None:
    config: dict[str, Any] = {"connectors": [source(), destination()], "dead-letter-queue": queue()}
    lab.pipeline(**{**config, "processors": list(processors), **more})


def test_a_missing_file(lab: Lab) -> None:
    simple(lab)
    assert "./in.jsonl" in failed(lab.run(), "file.missing")


def test_a_destination_in_a_file(lab: Lab) -> None:
    """A folder on the destination's path is a file."""
    lab.write("in.jsonl", [{"i": 1}])
    lab.write("plain", ["x"])
    simple(lab, DECODE, connectors=[source(), destination(path="./plain/out.jsonl")])
    failed(lab.run(), "file.not_folder")


def test_a_destination_that_is_a_device(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    simple(lab, DECODE, connectors=[source(), destination(path="/dev/null")])
    failed(lab.run(), "file.not_regular")


def test_a_destination_that_is_a_pipe(lab: Lab) -> None:
    """Without a reader, opening it for writing only would wait for one."""
    lab.write("in.jsonl", [{"i": 1}])
    os.mkfifo(lab.root / "pipe")
    simple(lab, DECODE, connectors=[source(), destination(path="./pipe")])
    failed(lab.run(), "file.not_regular")


@pytest.mark.parametrize("plugin", ["file", "parquet"])
@pytest.mark.parametrize("path", ["./pipe", "./pipes/*", "/dev/null", "./socket"])
def test_a_source_that_is_no_regular_file(lab: Lab, plugin: str, path: str) -> None:
    """A pipe, a socket or a device: reading one would wait for a writer, or consume data that can't be read again."""
    (lab.root / "pipes").mkdir()
    os.mkfifo(lab.root / "pipe")
    os.mkfifo(lab.root / "pipes" / "one")
    simple(lab, connectors=[source(plugin=plugin, path=path), destination()])
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(lab.root):
        made.bind("socket")
        assert "not a regular file" in failed(lab.run(), "file.not_regular")


def test_a_pipe_beside_a_file_is_not_taken_for_its_rotated_part(lab: Lab) -> None:
    os.mkfifo(lab.root / "in.jsonl.pipe")
    lab.write("in.jsonl", [{"i": 1}])
    simple(lab, DECODE)
    assert lab.run().error is None
    assert len(lab.lines("out.jsonl")) == 1


def test_a_source_that_is_a_link_to_itself(lab: Lab) -> None:
    (lab.root / "in.jsonl").symlink_to("in.jsonl")
    simple(lab)
    failed(lab.run(), "file.link_loop")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_blank_line_is_no_dead_letter_whatever_the_line_ends(lab: Lab, end: str) -> None:
    """As in Conduit an empty line is an empty record, which decodes to null; Conduit has no case with CRLF."""
    (lab.root / "in.jsonl").write_bytes(end.join(['{"i":1}', "", '{"i":2}', ""]).encode())
    simple(lab, DECODE)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 1}, None, {"i": 2}]
    assert lab.lines("dead.jsonl") == []


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127])
def test_the_longest_name_of_a_file(lab: Lab, name: str) -> None:
    """Of source, destination and dead-letter queue, and of a pipeline and its connectors in the staging folder."""
    lab.write(f"{name[:-1]}i", [{"i": 1}])
    ends = [source(path=f"./{name[:-1]}i"), {**destination(path=f"./{name[:-1]}o"), "id": ":" * 127}]
    lab.pipeline(
        id=":" * 128,
        connectors=ends,
        processors=[DECODE],
        **{"dead-letter-queue": queue(path=f"./{name[:-1]}d")},
    )
    assert lab.run(":" * 128).error is None
    assert len(lab.lines(f"{name[:-1]}o")) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a file system can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_destination(lab: Lab, small_disk: Path) -> None:
    """The run stops with a transient error; with space again the same delivery is finished, every record once."""
    rows = [{"i": i, "pad": "x" * 1000} for i in range(400)]
    lab.write("in.jsonl", rows)
    simple(lab, DECODE, connectors=[source(), destination(path=str(small_disk / "out.jsonl"))])
    result = lab.run()
    failed(result, "file.disk_full")
    assert not result.error.fatal  # type: ignore[union-attr]
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert lab.run().error is None
    assert [json.loads(line) for line in (small_disk / "out.jsonl").open()] == rows


def test_invalid_bytes(lab: Lab) -> None:
    """Bytes that are not UTF-8 are nacked, and the dead letter has exactly these bytes."""
    (lab.root / "in.jsonl").write_bytes(b'{"a": "\xff\xfe"}\n{"a": 1}\n')
    simple(lab, DECODE)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"a": 1}]
    row = lab.documents("dead.jsonl")[0]
    assert row["payload"]["after"]["payload"]["after"] == "eyJhIjogIv/+In0="


def test_a_line_of_50_mb(lab: Lab) -> None:
    """It is a record like any other, between two small ones."""
    lab.write("in.jsonl", [{"i": 1}, {"i": 2, "big": "x" * 50_000_000}, {"i": 3}])
    simple(lab, DECODE)
    assert lab.run(parallelism=2).error is None
    assert [(row["i"], len(row.get("big", ""))) for row in lab.documents("out.jsonl")] == [
        (1, 0),
        (2, 50_000_000),
        (3, 0),
    ]


def test_a_line_longer_than_a_batch(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}, {"i": 2, "big": "x" * 3_000_000}, {"i": 3}])
    simple(lab, DECODE, delivery={"batch-bytes": "1KB"})
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == [1, 2, 3]


def test_a_line_longer_than_any(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}, {"big": "x" * 5_000_000}])
    long = source()
    long["settings"]["max-line"] = "1000000"
    simple(lab, DECODE, connectors=[long, destination()])
    assert "longer than 1000000 bytes" in failed(lab.run(), "file.line_too_long")


def test_an_empty_file(lab: Lab) -> None:
    lab.write("in.jsonl", [])
    simple(lab, DECODE)
    result = lab.run()
    assert (result.status, result.error, result.progress.read) == ("stopped", None, 0)


def test_a_record_that_is_no_object(lab: Lab) -> None:
    lab.write("in.jsonl", ["[1]", "7", {"a": 1}])
    simple(lab, DECODE)
    lab.run()
    assert lab.documents("out.jsonl") == [{"a": 1}]
    assert [reason for _, reason, _ in lab.letters()] == [
        ".Payload.After is JSON but not a document: a list, '[1]'",
        ".Payload.After is JSON but not a document: a number, '7'",
    ]


def test_odd_names(lab: Lab) -> None:
    """Fields with dots, spaces and quotes are reached by brackets, and by items in expressions."""
    lab.write("in.jsonl", [{"a.b": 1, "c d": 2, 'e"f': 3, "": 4}])
    simple(
        lab,
        DECODE,
        processor("one", "field.set", field='.Payload.After["a.b"]', expression="after['c d'] + after['e\"f']"),
        processor("two", "field.exclude", fields='.Payload.After["c d"],.Payload.After["e\\"f"]'),
    )
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"a.b": 5, "": 4}]


def test_very_deep_documents(lab: Lab) -> None:
    """Nested deeper than Python may call: delivered or nacked, and the step never fails."""
    deep = ['{"a":' * depth + "1" + "}" * depth for depth in (100, 400, 700, 950, 2000)]
    lab.write("in.jsonl", deep)
    simple(
        lab,
        DECODE,
        connectors=[
            source(),
            destination("out", processors=[EXCLUDE]),
            destination("out2", processors=[EXCLUDE]),
        ],
    )
    result = lab.run()
    assert result.error is None
    good = result.progress.delivered["out"]
    assert good >= 2
    assert len(lab.lines("out.jsonl")) + len(lab.lines("dead.jsonl")) == len(deep)
    assert lab.lines("out.jsonl") == deep[:good]


def test_a_processor_of_the_users_that_misbehaves(lab: Lab) -> None:
    """An error or a wrong result nacks that record alone; one returned twice becomes two records."""
    lab.write("plugins/odd.py", [ODD])
    lab.write("in.jsonl", [{"i": i} for i in range(6)])
    more = processor("more", "field.set", field=".Payload.After.i", expression="after.i + 1")
    simple(lab, DECODE, processor("odd", "odd"), more)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 1}, {"i": 6}, {"i": 6}]
    assert [reason for _, reason, _ in lab.letters()] == [
        "ZeroDivisionError: division by zero",
        "the processor returned a NoneType, not a record, a list of them or DROP",
        "the record holds a value that JSON cannot hold: .Payload.After.i is NaN",
    ]


ODD = """
from conduit_dagster.sdk import DROP, Processor

class Odd(Processor):
    name = "odd"
    def process(self, record):
        i = record.after["i"]
        if i == 1:
            1 / 0
        if i == 2:
            return None
        if i == 3:
            record.after["i"] = float("nan")
        if i == 4:
            return DROP
        return [record, record] if i == 5 else record
"""


def test_two_destinations_on_one_path(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    simple(lab, DECODE, connectors=[source(), destination("out"), destination("out2", "out.jsonl")])
    codes = [finding.code for finding in lab.catalogue().findings if finding.is_error]
    assert codes == ["destination.owned"]


@pytest.mark.parametrize(
    ("reads", "writes", "warned"),
    [
        ({"path": "./in.jsonl"}, "./in.jsonl", True),
        ({"path": "./data"}, "./data/out.jsonl", True),
        ({"path": "./data/*.jsonl"}, "./data/out.jsonl", True),
        ({"path": "./data/*.jsonl", "exclude": "out*"}, "./data/out.jsonl", False),
        ({"path": "./data/*.jsonl"}, "./data/_out.jsonl", False),
        ({"path": "./data/*.jsonl"}, "./data/out.json", False),
        # the names of a rotated file, whose lines are read before those of the next one
        ({"path": "./app.log"}, "./app.log.out", True),
        ({"path": "./app.log"}, "./app.log-out", True),
        ({"path": "./app.log"}, "./app.log-out/", False),
        ({"path": "./app.log"}, "./out/app.log.out", False),
        ({"path": "./app.log"}, "./app.out", False),
    ],
)
def test_a_source_that_reads_its_own_output_is_warned_of(
    lab: Lab, reads: dict[str, str], writes: str, warned: bool
) -> None:
    simple(lab, connectors=[{**source(), "settings": reads}, destination("out", writes)])
    codes = [(finding.code, finding.severity) for finding in lab.catalogue().findings]
    assert codes == ([("source.own_output", "warning")] if warned else [])


def test_two_sources_on_one_replication_slot(lab: Lab) -> None:
    """Data confirmed by one of them would never reach the other."""
    for name in ("p", "q"):
        settings = {"url": f"postgresql://u:{name}secret@h/d", "tables": "a"}
        reader = {"id": "in", "type": "source", "plugin": "builtin:postgres", "settings": settings}
        lab.pipeline(
            id=name, connectors=[reader, destination(name)], **{"dead-letter-queue": queue(path=f"./d{name}.jsonl")}
        )
    [finding] = lab.catalogue().findings
    assert finding.code == "source.owned"
    assert "the replication slot conduitslot of h:5432 is read by in of pipeline p already" in finding.render()
    assert "secret" not in finding.render()


def test_a_destination_whose_owner_died_elsewhere_changes_hands(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    lab.pipeline(id="other", connectors=[source(), destination()])
    assert lab.run("other").error is None
    with lab.store() as database:
        silence(acquire(database, "other", 1.0))
        change_owner(database, host="elsewhere", boot="other")
    (lab.root / "pipelines" / "other.yaml").unlink()
    simple(lab, DECODE)
    assert lab.run(lease_seconds=0.5).error is None


def test_a_destination_that_another_running_pipeline_owns(lab: Lab) -> None:
    """Two files that are never checked together can't see each other; the store that they share does.

    Once the other has ended the path may change hands: a pipeline that was renamed goes on.
    """
    lab.write("in.jsonl", [{"i": 1}])
    lab.pipeline(id="other", trigger="continuous", connectors=[source(), destination()])
    stop, moved = StopFlag(), threading.Event()
    options: dict[str, Any] = {"drain": False, "stop": stop, "observe": lambda step, progress: moved.set()}
    other = threading.Thread(target=lambda: lab.run("other", **options), daemon=True)
    other.start()
    assert moved.wait(120)
    (lab.root / "pipelines" / "other.yaml").unlink()
    simple(lab, DECODE)
    refused = lab.run()
    failed(refused, "destination.owned")
    assert refused.error is not None
    assert "pipelines stop other" in (refused.error.fix or "")
    # nothing of it was registered
    with lab.store() as database, database.connect() as connection:
        assert set(connection.execute(sa.select(consumers.c.pipeline)).scalars()) == {"other"}
        assert set(connection.execute(sa.select(sources.c.pipeline)).scalars()) == {"other"}
    stop.request()
    other.join(120)
    assert lab.run().error is None
    assert lab.lines("out.jsonl") == ['{"i": 1}', '{"i":1}']


def test_somebody_else_writes_to_the_destination(lab: Lab) -> None:
    lab.write("in.jsonl", [{"i": 1}])
    simple(lab, DECODE)
    assert lab.run().error is None
    lab.write("out.jsonl", ["foreign"], mode="a")
    lab.write("in.jsonl", [{"i": 2}], mode="a")
    failed(lab.run(), "file.changed")
    assert lab.lines("out.jsonl") == ['{"i":1}', "foreign"]
    adopting = destination()
    adopting["settings"]["if-changed"] = "adopt"
    simple(lab, DECODE, connectors=[source(), adopting])
    assert lab.run().error is None
    assert lab.lines("out.jsonl") == ['{"i":1}', "foreign", '{"i":2}']


def test_a_state_store_that_lost_a_table(lab: Lab) -> None:
    """It is named; with the table back the run continues, and every record is delivered once."""
    lab.write("in.jsonl", [{"i": 1}])
    simple(lab, DECODE)
    assert lab.run().error is None
    lab.write("in.jsonl", [{"i": 2}], mode="a")
    store = sqlite3.connect(lab.root / ".conduit" / "state.db")
    store.execute("ALTER TABLE conduit_steps RENAME TO away")
    store.commit()
    result = lab.run()
    assert result.error is not None
    assert (result.error.code, result.error.fatal) == ("state.replaced", True)
    assert result.error.fix
    store.execute("ALTER TABLE away RENAME TO conduit_steps")
    store.commit()
    store.close()
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"i": 1}, {"i": 2}]

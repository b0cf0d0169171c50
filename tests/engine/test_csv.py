"""CSV files to JSON lines: exactly-once whatever stops a run, and the page ``docs/csv.md`` as written."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from lab.support import Crashes, Lab, destination, processor, queue, source
from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "csv.md"
DECODE = processor("decode", "csv.decode", columns="id:int, amount:float")
FOLDER = source(settings={"path": "./in/*.csv", "header": True})
COUNT = 24_000


def rows(first: int, count: int) -> list[list[str]]:
    return [[f'{"a, b" * 15} "{i}"', str(i), "" if i % 5 == 0 else f"{i / 4}"] for i in range(first, first + count)]


def write(path: Path, names: list[str], lines: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *lines])


def build(lab: Lab, size: int, log: str = "positions") -> None:
    lab.pipeline(
        connectors=[FOLDER, destination()],
        processors=[DECODE],
        delivery={"strategy": "exactly-once", "batch-size": size, "log": log},
        **{"dead-letter-queue": queue()},
    )


def ids(lab: Lab) -> list[int]:
    return [row["id"] for row in lab.documents("out.jsonl")]


@pytest.mark.parametrize(
    ("point", "log"),
    [
        ("after-plan:2", "positions"),
        ("after-stage", "positions"),
        ("after-prepare:2", "positions"),
        ("after-publish", "positions"),
        ("after-log", "records"),
    ],
)
def test_exactly_once_whatever_stops_it(lab: Lab, crashes: Crashes, point: str, log: str) -> None:
    """Two files of some MiB, read by two tasks in several splits, the columns of the second in another order."""
    write(lab.root / "in" / "1.csv", ["name", "id", "amount"], rows(0, COUNT))
    write(lab.root / "in" / "2.csv", ["amount", "id", "name"], [row[::-1] for row in rows(COUNT, 100)])
    build(lab, 10_000, log)
    crashes(lab, point)
    assert lab.run(parallelism=2).error is None
    found = lab.documents("out.jsonl")
    assert ids(lab) == list(range(COUNT + 100))
    assert found[6] == {"name": f'{"a, b" * 15} "6"', "id": 6, "amount": 1.5}
    assert found[-5] == {"amount": None, "id": COUNT + 95, "name": f'{"a, b" * 15} "{COUNT + 95}"'}
    assert lab.letters() == []


def test_one_split_and_many_give_the_same(lab: Lab, spark: SparkSession, tmp_path: Path) -> None:
    found = [lab, Lab(tmp_path / "other", spark)]
    for each, size, tasks in zip(found, (COUNT, 9_999), (1, 4), strict=True):
        write(each.root / "in" / "1.csv", ["name", "id", "amount"], rows(0, COUNT))
        build(each, size)
        assert each.run(parallelism=tasks).error is None
    assert found[0].lines("out.jsonl") == found[1].lines("out.jsonl")
    assert ids(lab) == list(range(COUNT))


def test_bad_lines_are_dead_letters_and_can_be_sent_again(lab: Lab) -> None:
    """With their header, which a replay needs; blank lines are not records."""
    (lab.root / "in").mkdir()
    (lab.root / "in" / "1.csv").write_text("id,amount\n1,x\n\n2,2.5\n3\n", encoding="utf-8")
    build(lab, 100)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"id": 2, "amount": 2.5}]
    assert [(node, after) for node, _, after in lab.letters()] == [("p:decode", "1,x"), ("p:decode", "3")]
    [letter, _] = lab.documents("dead.jsonl")
    assert letter["payload"]["after"]["metadata"]["file.header"] == "id,amount"
    lab.pipeline(
        connectors=[FOLDER, destination()],
        processors=[processor("decode", "csv.decode", columns="id:int")],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue()},
    )
    facts = lab.replay()
    assert (facts["replayed"], facts["failed"]) == (1, 1)
    assert lab.documents("out.jsonl")[1:] == [{"id": 1, "amount": "x"}]


def test_a_file_source_without_its_setting_stops_with_the_way_out(lab: Lab) -> None:
    lab.write("in.csv", ["id,amount", "1,2"])
    lab.pipeline(
        connectors=[source("./in.csv"), destination()],
        processors=[DECODE],
        **{"dead-letter-queue": {"plugin": "builtin:log"}},
    )
    result = lab.run()
    assert result.error is not None and "set header: true at the file source" in result.error.message


def blocks(text: str) -> list[tuple[str, bool, str]]:
    """The page's files: path, whether a run writes it, and content."""
    found = re.finditer(r"^(After .*?)?`([\w./-]+)`[^\n`]*:\n\n```\w*\n(.*?)^```$", text, re.M | re.S)
    return [(match[2], bool(match[1]), match[3]) for match in found]


def test_every_block_of_the_page_is_a_file_or_a_result() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert 2 * len(blocks(text)) == len(re.findall("^```", text, re.M))


@pytest.mark.slow
@pytest.mark.parametrize(("pipeline", "results"), [("orders", 1), ("notes", 1), ("routing", 3)])
def test_the_page_does_what_it_says(lab: Lab, pipeline: str, results: int) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, is_result, content in blocks(text):
        path = lab.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_result:
            path.write_text(content, encoding="utf-8")
    assert lab.run(pipeline).error is None
    written = [(name, content) for name, is_result, content in blocks(text) if is_result and (lab.root / name).exists()]
    assert len(written) == results
    for name, content in written:
        assert lab.lines(name) == content.splitlines()
    if pipeline == "orders":
        reasons = [reason for _, reason, _ in lab.letters()]
        assert re.findall(r"^    (\.Payload.*)$", text, re.M) == reasons
    if pipeline == "routing":
        assert [node for node, _, _ in lab.letters("refused.jsonl")] == ["routing:shop:items"]

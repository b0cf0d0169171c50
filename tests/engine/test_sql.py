"""``sql`` in a pipeline: Spark computes in the stage's own tasks, and the guarantees are those of any other step."""

from __future__ import annotations

from typing import Any

from support import DECODE, Lab, destination, processor, queue, source

TOTAL = "SELECT *, price * count AS total FROM record WHERE count <> 0"
COLUMNS = "price DECIMAL(10, 2), count INT"


def sql(name: str = "q", query: str = TOTAL, columns: str = COLUMNS, **more: Any) -> dict[str, Any]:
    return processor(name, "sql", columns=columns, query=query, **more)


def build(lab: Lab, *processors: Any, **more: Any) -> None:
    usual: dict[str, Any] = {
        "connectors": [source(), destination()],
        "processors": [DECODE, *(processors or [sql()])],
        "dead-letter-queue": queue(),
    }
    lab.pipeline(**{**usual, **more})


def rows(count: int) -> list[dict[str, Any]]:
    return [{"i": i, "price": i + 0.25, "count": i % 3, "note": "n" * (i % 7)} for i in range(count)]


def expected(count: int) -> list[dict[str, Any]]:
    return [{**row, "total": row["price"] * row["count"]} for row in rows(count) if row["count"]]


def test_a_pipeline_with_a_query(lab: Lab) -> None:
    lab.write("in.jsonl", rows(10))
    build(lab)
    result = lab.run()
    assert result.error is None
    assert lab.documents("out.jsonl") == expected(10)


def test_many_blocks_and_tasks_keep_their_order(lab: Lab) -> None:
    lab.write("in.jsonl", rows(60_000))
    build(lab)
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == expected(60_000)

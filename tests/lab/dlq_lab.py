"""A pipeline in a temporary project that nacks three of twenty records, and ``dlq`` commands for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from conduit_dagster.state.overview import source_rows
from lab.operating import error, result
from lab.support import DECODE, Lab, destination, processor, queue, source

GOOD = [{"i": i, "amount": i * 10} for i in range(20)]
CONVERT = processor("convert", "field.convert", field=".Payload.After.amount", type="int")
BAD = (3, 7, 8)


def rows() -> list[dict[str, Any]]:
    """Return twenty rows, three of them without a number."""
    return [{**row, "amount": f"many{row['i']}"} if row["i"] in BAD else row for row in GOOD]


def build(lab: Lab, *outputs: Any, **more: Any) -> None:
    """Create a pipeline whose second processor nacks three of twenty records."""
    lab.write("in.jsonl", rows())
    tag = processor("tag", "field.set", field=".Payload.After.tag", expression="'t' + str(after.i)")
    more = {"processors": [DECODE, tag, CONVERT], "dead-letter-queue": queue(), **more}
    lab.pipeline(connectors=[source(), *(outputs or [destination()])], **more)


def mended(lab: Lab, *outputs: Any, **more: Any) -> None:
    """Create the same pipeline, with a processor that extracts the digits of a text."""
    digits = processor(
        "digits",
        "field.set",
        condition="isinstance(after.amount, str)",
        field=".Payload.After.amount",
        expression="after.i * 10",
    )
    tag = processor("tag", "field.set", field=".Payload.After.tag", expression="'t' + str(after.i)")
    lab.pipeline(
        connectors=[source(), *(outputs or [destination()])],
        processors=[DECODE, tag, digits, CONVERT],
        **{"dead-letter-queue": queue(), **more},
    )


def delivered(lab: Lab, name: str = "out.jsonl") -> Counter[int]:
    """Return how often each record was delivered."""
    return Counter(row["i"] for row in lab.documents(name))


def positions(lab: Lab) -> list[Any]:
    """Return the position of every source."""
    with lab.store() as database:
        return source_rows(database, "p")


def done(run: Any, *words: str) -> Any:
    """Return the result of a ``dlq`` command that succeeds."""
    return result(run("dlq", *words, "--json"))


def failed_again(run: Any, *options: str) -> Any:
    """Return the result of a replay some of whose letters fail again."""
    ran = run("dlq", "replay", "p", *options, "--json")
    assert (ran.code, error(ran)["code"]) == (1, "dead_letters.failed_again")
    return ran.envelope["result"]


def failure(run: Any, *words: str) -> Any:
    """Return the error of a ``dlq`` command that fails."""
    return error(run("dlq", *words, "--json"))


def letters(run: Any, *more: str) -> list[dict[str, Any]]:
    """Return the listed letters, the newest first."""
    found = done(run, "list", "p", *more)["pipelines"]
    return found[0]["letters"] if found else []

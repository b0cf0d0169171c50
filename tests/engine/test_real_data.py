"""Real records, some of them dirty. Expectations are computed here with the json module alone, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab.operating import offsets
from lab.support import DECODE, SHARED, Lab, destination, processor, queue, source

from conduit_dagster.state.dead_letters import DeadLetterQuery, reasons

DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="shared/data is not beside the checkout")


def rows_of(name: str) -> list[Any]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


MOVIES = [
    DECODE,
    processor(
        "title",
        "error",
        "not isinstance(after.Title, str)",
        message="title is {{ toJson .Payload.After.Title }}",
    ),
    processor("rated", "filter", "after['IMDB Rating'] is None"),
    processor("drop", "field.exclude", fields='.Payload.After["US DVD Sales"],.Payload.After.Source'),
    processor("score", "field.set", field=".Payload.After.score", expression="round(after['IMDB Rating'] * 10)"),
    processor(
        "votes",
        "field.convert",
        'after["IMDB Votes"] is not None',
        field='.Payload.After["IMDB Votes"]',
        type="string",
    ),
]


def movie(row: dict[str, Any]) -> dict[str, Any]:
    """The pipeline's result for one movie."""
    made = {k: v for k, v in row.items() if k not in ("US DVD Sales", "Source")}
    made["score"] = round(row["IMDB Rating"] * 10)
    if row["IMDB Votes"] is not None:
        made["IMDB Votes"] = str(row["IMDB Votes"])
    return made


def test_movies(lab: Lab) -> None:
    """3,201 read; 10 dead letters, each with its reason; both destinations hold the rest in source order."""
    short = processor("short", "field.exclude", fields=".Payload.After.Director")
    lab.pipeline(
        connectors=[
            source(str(DATA / "movies.jsonl")),
            destination(),
            destination("out2", processors=[short]),
        ],
        processors=MOVIES,
        **{"dead-letter-queue": queue()},
    )
    result = lab.run(parallelism=3)
    rows = rows_of("movies.jsonl")
    bad = [row for row in rows if not isinstance(row["Title"], str)]
    kept = [movie(row) for row in rows if isinstance(row["Title"], str) and row["IMDB Rating"] is not None]
    assert (len(rows), len(bad)) == (3201, 10)
    assert lab.documents("out.jsonl") == kept
    assert lab.documents("out2.jsonl") == [{k: v for k, v in row.items() if k != "Director"} for row in kept]
    reasons = [f"title is {json.dumps(row['Title'])}" for row in bad]
    assert lab.letters() == [("p:title", reason, row) for reason, row in zip(reasons, bad, strict=True)]
    progress = result.progress
    assert (progress.read, progress.acked, progress.nacked) == (3201, 3191, 10)
    assert progress.dead_lettered == 10
    assert progress.filtered == 3201 - 10 - len(kept)
    assert progress.delivered == {"out": len(kept), "out2": len(kept)}


def test_flights(lab: Lab) -> None:
    """20,000 records in several steps arrive whole, in order, with the late ones marked."""
    late = processor("late", "field.set", "after.delay > 60", field=".Payload.After.late", expression="True")
    lab.pipeline(
        connectors=[source(str(DATA / "flights.jsonl")), destination()],
        processors=[DECODE, late],
        delivery={"batch-bytes": "300KB"},
    )
    result = lab.run()
    rows = rows_of("flights.jsonl")
    assert lab.documents("out.jsonl") == [{**r, "late": True} if r["delay"] > 60 else r for r in rows]
    assert result.progress.steps > 5


def test_earthquakes(lab: Lab) -> None:
    """Nested documents: fields are set, renamed and dropped deep inside; nothing else changes."""
    lab.pipeline(
        connectors=[source(str(DATA / "earthquakes.jsonl")), destination("out", "./out/")],
        processors=[
            DECODE,
            processor("zone", "field.rename", mapping=".Payload.After.properties.tz:zone"),
            processor(
                "depth",
                "field.set",
                field=".Payload.After.properties.depth",
                expression="after.geometry.coordinates[2]",
            ),
            processor("drop", "field.exclude", fields=".Payload.After.geometry,.Payload.After.properties.detail"),
        ],
    )
    lab.run(parallelism=2)
    found = [json.loads(line) for path in sorted(lab.root.glob("out/step=*/*")) for line in path.open(encoding="utf-8")]
    assert found == [quake(row) for row in rows_of("earthquakes.jsonl")]


def quake(row: dict[str, Any]) -> dict[str, Any]:
    properties = {k: v for k, v in row["properties"].items() if k not in ("tz", "detail")}
    properties |= {"zone": row["properties"]["tz"], "depth": row["geometry"]["coordinates"][2]}
    return {**{k: v for k, v in row.items() if k != "geometry"}, "properties": properties}


def test_a_record_that_is_no_json(lab: Lab) -> None:
    """The lines of a CSV are dead letters, each with its own text, and the JSON among them passes."""
    lines = (DATA / "birdstrikes.csv").read_text(encoding="utf-8").splitlines()[:200]
    lab.write("in.jsonl", [*lines, {"ok": 1}])
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], **{"dead-letter-queue": queue()})
    lab.run()
    assert lab.documents("out.jsonl") == [{"ok": 1}]
    assert [after for _, _, after in lab.letters()] == lines


def test_movies_are_replayed_once_their_processor_is_mended(lab: Lab) -> None:
    """Ten dead letters; the processor is fixed in the file; all ten are delivered once, and none is open."""
    path = str(DATA / "movies.jsonl")
    letters = {"dead-letter-queue": queue()}
    lab.pipeline(connectors=[source(path), destination()], processors=MOVIES, **letters)
    assert lab.run(parallelism=3).progress.nacked == 10
    before, delivered = offsets(lab), len(lab.documents("out.jsonl"))
    without = [one for one in MOVIES if one["id"] != "title"]
    title = processor("title", "field.convert", field=".Payload.After.Title", type="string")
    lab.pipeline(connectors=[source(path), destination()], processors=[*without, title], **letters)
    facts = lab.replay()
    assert (facts["letters"], facts["replayed"], facts["failed"]) == (10, 10, 0)
    bad = [row for row in rows_of("movies.jsonl") if not isinstance(row["Title"], str)]
    titles = ["<nil>" if row["Title"] is None else str(row["Title"]) for row in bad if row["IMDB Rating"] is not None]
    assert [row["Title"] for row in lab.documents("out.jsonl")[delivered:]] == titles
    assert facts["delivered"] == {"out": len(titles)}
    with lab.store() as store:
        assert reasons(store, "p", DeadLetterQuery()) == []
    assert offsets(lab) == before and lab.run().progress.read == 0

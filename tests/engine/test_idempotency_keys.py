"""Keys of records for side effects: the engine's own, whatever processors do to a record."""

from __future__ import annotations

from typing import Any

from lab.scripted import Script, scripted
from lab.support import DECODE, Lab, destination, processor, queue, source

UNWRAP = processor("unwrap", "unwrap.opencdc")
KEYED = "def f(record, context):\n    record.after['key'] = list(context.record_key(record))\n    return record\n"
REMADE = (
    "from conduit_dagster.record import Record\n"
    "def f(record):\n    return [Record('x', {}, dict(record.after)) for _ in range(2)]\n"
)


def inner(i: int) -> dict[str, Any]:
    return {"operation": "create", "metadata": {}, "key": None, "payload": {"before": None, "after": {"i": i}}}


def two_sources(lab: Lab, *processors: Any, **more: Any) -> None:
    """Two files of equal positions."""
    sources = [source(f"./{name}.jsonl", id=name) for name in ("a", "b")]
    lab.pipeline(connectors=[*sources, scripted()], processors=[DECODE, *processors], **more)


def keys(lab: Lab) -> list[list[Any]]:
    return [key for row in lab.documents("out.sent") for key in row["keys"]]


def test_sources_whose_metadata_was_replaced_keep_their_own(lab: Lab, script: Script) -> None:
    for name in ("a", "b"):
        lab.write(f"{name}.jsonl", [inner(1), inner(2)])
    two_sources(lab, UNWRAP)
    assert lab.run().error is None
    assert script.values() == [1, 2, 1, 2]
    lab.write("b.jsonl", [inner(3)], mode="a")
    lab.write("a.jsonl", [inner(3)], mode="a")
    script.says(outage=[3])
    lab.run()
    script.says()
    assert lab.run().error is None
    found = keys(lab)
    assert [source for source, _, _ in found] == ["a", "a", "b"] and found[0] == found[1]
    assert all(generation > 0 for _, generation, _ in found)


def test_processors_see_the_keys_of_the_source(lab: Lab, script: Script) -> None:
    for name in ("a", "b"):
        lab.write(f"{name}.jsonl", [inner(1)])
    (lab.root / "own.py").write_text(KEYED)
    two_sources(lab, UNWRAP, processor("own", "python", function="own:f"))
    assert lab.run().error is None
    assert [source for source, _, _ in keys(lab)] == ["a", "b"]


def test_the_position_is_the_sources_whatever_a_function_returns(lab: Lab, script: Script) -> None:
    lab.write("a.jsonl", [{"i": 1}, {"i": 2}])
    lab.write("b.jsonl", [])
    (lab.root / "own.py").write_text(REMADE)
    two_sources(lab, processor("own", "python", function="own:f"))
    assert lab.run().error is None
    one, again, two, _ = keys(lab)
    assert one == again != two and "x" not in (one[2], two[2])


def test_a_dead_letter_sent_again_has_a_key_of_its_own(lab: Lab, script: Script) -> None:
    """After a rewind, its position alone would make it a repeat of what was delivered before."""
    lab.write("a.jsonl", [{"i": 1}])
    lab.write("b.jsonl", [])
    fails = processor("fails", "error", "after.i == 1", message="no")
    two_sources(lab, fails, **{"dead-letter-queue": queue()})
    assert lab.run().error is None
    two_sources(lab, **{"dead-letter-queue": queue()})
    assert lab.replay()["delivered"] == {"out": 1}
    [[_, generation, _]] = keys(lab)
    assert generation > 0


def test_joined_records_have_the_keys_of_their_join(lab: Lab, script: Script) -> None:
    for name in ("a", "b"):
        lab.write(f"{name}.jsonl", [inner(1), inner(2)])
    (lab.root / "own.py").write_text(KEYED)
    own = [DECODE, UNWRAP, processor("own", "python", function="own:f")]
    sources = [source(f"./{name}.jsonl", id=name, processors=own) for name in ("a", "b")]
    flat = [("keys", "[after.a.key, after.b.key]"), ("i", "after.a.i")]
    lab.pipeline(
        connectors=[*sources, scripted(), destination("file")],
        processors=[processor(n, "field.set", field=f".Payload.After.{n}", expression=e) for n, e in flat],
        **{"fan-in": "join"},
    )
    assert lab.run().error is None
    found = keys(lab)
    assert {source for source, _, _ in found} == {"a+b"} and len({tuple(key) for key in found}) == 2
    members = [key for row in lab.documents("file.jsonl") for key in row["keys"]]
    assert [source for source, _, _ in members] == ["a", "b"] * 2 and len({tuple(key) for key in members}) == 4
    assert all(generation > 0 for _, generation, _ in [*found, *members])

"""``schema`` in a pipeline: a frozen contract stops it before the step, and it continues from there."""

from __future__ import annotations

from typing import Any

from lab.support import DECODE, Lab, destination, processor, queue, source


def build(lab: Lab, fields: str, **modes: str) -> None:
    """Three records, two per step; the last one has a new field."""
    lab.write("in.jsonl", [{"id": 0}, {"id": 1}, {"id": "2"}, {"id": 3, "new": 1}])
    contract = processor("contract", "schema", fields=fields, **modes)
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, contract],
        delivery={"batch-size": 2},
        **{"dead-letter-queue": queue()},
    )


def ids(lab: Lab) -> list[Any]:
    """The delivered records."""
    return [row["id"] for row in lab.documents("out.jsonl")]


def test_a_frozen_contract_stops_the_pipeline_until_it_is_changed(lab: Lab) -> None:
    build(lab, "id:integer", data_type="freeze")
    result = lab.run()
    assert result.error is not None and result.error.fatal and result.status == "degraded"
    assert (result.error.code, result.error.node) == ("schema.data_type", "p:contract")
    assert "the field id is text, not integer" in result.error.message
    assert ids(lab) == [0, 1] and lab.letters() == []
    build(lab, "id:any", data_type="freeze")
    assert lab.run().error is None
    assert ids(lab) == [0, 1, "2", 3]


def test_what_breaks_it_is_a_dead_letter_or_loses_the_field(lab: Lab) -> None:
    build(lab, "id:integer", columns="discard_value")
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"id": 0}, {"id": 1}, {"id": 3}]
    assert [node for node, *_ in lab.letters()] == ["p:contract"]

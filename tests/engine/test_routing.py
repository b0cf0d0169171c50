"""Records go to destinations by ``condition`` and ``namespace``; a record that does not go to one is acked for it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, processor, queue, source

from conduit_dagster.state.dead_letters import DeadLetterQuery, newest
from conduit_dagster.state.overview import offset_rows

UP = processor("up", "field.set", field=".Payload.After.n", expression="after.n + 100")


def build(lab: Lab, *outputs: Any, **more: Any) -> None:
    """Twelve records, one of which is not a number."""
    lab.write("in.jsonl", [{"n": n if n != 5 else "five"} for n in range(12)])
    lab.pipeline(
        **{
            "connectors": [source(), *outputs],
            "processors": [DECODE],
            "dead-letter-queue": queue(),
            "delivery": {"strategy": "exactly-once", "batch-size": 5},
            **more,
        }
    )


def numbers(lab: Lab, name: str) -> list[Any]:
    """The content of a destination."""
    return [row["n"] for row in lab.documents(f"{name}.jsonl")]


def test_each_destination_gets_its_share(lab: Lab) -> None:
    even = destination("even", condition="after.n % 2 == 0 if isinstance(after.n, int) else False", processors=[UP])
    text = destination("text", condition="isinstance(after.n, str)")
    build(lab, even, text, destination("all"))
    assert lab.run().error is None
    assert numbers(lab, "even") == [100, 102, 104, 106, 108, 110]
    assert numbers(lab, "text") == ["five"]
    assert numbers(lab, "all") == [0, 1, 2, 3, 4, "five", *range(6, 12)]
    assert lab.letters() == []
    with lab.store() as store:
        stands = {row["consumer"]: row["offset"] for row in offset_rows(store, "p") if row["namespace"] == "*"}
    assert stands == {"even": 11, "text": 11, "all": 11, "dead_letters": 11}


def test_a_condition_that_fails_nacks_for_its_destination_alone(lab: Lab) -> None:
    big = destination("big", condition="after.n > 5", processors=[UP])
    build(lab, big, destination("all"))
    assert lab.run().error is None
    assert numbers(lab, "big") == [106, 107, 108, 109, 110, 111] and len(numbers(lab, "all")) == 12
    [(node, message, _)] = lab.letters()
    assert node == "p:big:~condition" and "failed evaluating condition" in message
    # once fixed, it is asked again, whether the replay starts at the source or at the node
    build(lab, destination("big", condition="after.n == 'five' or after.n > 5"), destination("all"))
    facts = lab.replay(start="node")
    assert (facts["replayed"], facts["failed"]) == (1, 0)
    assert numbers(lab, "big")[-1] == "five" and Counter(numbers(lab, "all"))["five"] == 1
    with lab.store() as store:
        assert newest(store, "p", DeadLetterQuery(), 1) == []


@pytest.mark.parametrize("log", ["positions", "records"])
def test_a_sources_own_condition(lab: Lab, log: str) -> None:
    two = [source(condition="len(after) > 8"), destination("all")]
    build(lab, connectors=two, delivery={"log": log})
    assert lab.run().error is None
    assert numbers(lab, "all") == ["five", 10, 11]


def test_a_condition_that_is_none_is_found(lab: Lab) -> None:
    build(lab, destination("all", condition="after.n >"))
    [finding] = [one for one in lab.catalogue().findings if one.is_error]
    assert (finding.code, finding.path) == ("expression.invalid", "/pipelines/0/connectors/1/condition")

"""The delivery hash names a range and its consumer, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_dagster.connectors.delta.destination import DeltaDestination
from conduit_dagster.connectors.kafka.destination import KafkaDestination
from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.engine.delivery_progress import delivery_hash
from conduit_dagster.engine.plan import is_target, planned_target
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext, Destination

RANGE = {"source": "in", "generation": 1, "start": {"offset": 0}, "end": {"offset": 10}}


def test_it_is_stable() -> None:
    """Fixed forever: a destination may have stored it. Order of keys and Python's version do not matter."""
    name = delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE])
    turned = delivery_hash(kind="data", pipeline="p", destination="out", sources=[dict(reversed(RANGE.items()))])
    assert name == turned == "0d35b52015949d1e8f8a438e355a44d75eaf30eba23959d452bdcae39f3c1a44"


def test_each_part_of_the_name_counts() -> None:
    names = {
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE]),
        delivery_hash(kind="dlq", pipeline="p", destination="out", sources=[RANGE]),
        delivery_hash(kind="data", pipeline="q", destination="out", sources=[RANGE]),
        delivery_hash(kind="data", pipeline="p", destination="out2", sources=[RANGE]),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[{**RANGE, "generation": 2}]),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE], skip=1, take=1),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE], skip=2, take=1),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE], skip=0, take=4),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE], skip=0, take=4, without=[1]),
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[RANGE], skip=0, take=4, without=[1, 2]),
    }
    assert len(names) == 10


def test_integers_beyond_what_canonical_json_holds() -> None:
    """A 64-bit inode is a place like any other."""
    one, two = (
        delivery_hash(kind="data", pipeline="p", destination="out", sources=[{**RANGE, "end": {"inode": 2**63 + i}}])
        for i in (0, 1)
    )
    assert one != two


def made(kind: type[Destination], **settings: Any) -> Destination:
    return kind(kind.Settings.model_validate(settings), ConnectorContext("p", "out", "/", Clock()))


@pytest.mark.parametrize(
    ("kind", "settings", "change"),
    [
        (DeltaDestination, {"path": "/t"}, {"app-id": "mine"}),
        (KafkaDestination, {"servers": "a:1", "topic": "t"}, {"transactional-id": "mine"}),
        (KafkaDestination, {"servers": "a:1", "topic": "t"}, {"deliveries-topic": "mine"}),
        (PostgresDestination, {"url": "postgresql://a/b", "table": "{{ .Key }}"}, {"schema": "mine"}),
    ],
)
def test_a_setting_that_says_where_hashes_are_is_a_part_of_the_target(
    kind: type[Destination], settings: dict[str, str], change: dict[str, str]
) -> None:
    """Otherwise a step that was delivered before a crash is not found, and delivered once more."""
    planned = planned_target(made(kind, **settings))
    assert is_target(planned, made(kind, **settings))
    assert not is_target(planned, made(kind, **settings, **change))
    older = {key: value for key, value in planned.items() if key != "hashes"}
    assert is_target(older, made(kind, **settings, **change)), "a plan of an older version doesn't say it"


def test_a_target_of_a_newer_version_that_says_more_is_refused() -> None:
    """It was a KeyError; passed over, the step could go to another place than the one that it was prepared for."""
    destination = made(DeltaDestination, path="/t")
    with pytest.raises(FatalError, match="a target has `more`") as caught:
        is_target({**planned_target(destination), "more": "x"}, destination)
    assert caught.value.code == "state.version"

"""A Delta table that drops application transactions no longer knows whether it has a delivery."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lab.delta_deliveries import ids, make, numbers, stage
from lab.kills import at

from conduit_dagster.connectors.delta.destination import DeltaDestination, DeltaDestinationSettings
from conduit_dagster.expressions import Clock
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import ConnectorContext

EXPIRES = {"delta.setTransactionRetentionDuration": "interval 30 days"}
ROW = pa.table({"i": [0]})


def at_least_once(root: Path) -> DeltaDestination:
    context = ConnectorContext("p", "out", str(root), Clock(), "at-least-once")
    return DeltaDestination(DeltaDestinationSettings.model_validate({"path": "table"}), context)


def expire(root: Path) -> None:
    """Set the table's property, as ``ALTER TABLE`` does."""
    DeltaTable(root / "table").alter.set_table_properties(EXPIRES)


def test_the_check_refuses_it(tmp_path: Path) -> None:
    """With the statement that fixes it. At-least-once promises no more than such a table can keep."""
    write_deltalake(tmp_path / "table", ROW, configuration=EXPIRES)
    with pytest.raises(FatalError) as raised:
        make(tmp_path).check()
    assert raised.value.code == "delta.transactions_expire"
    assert raised.value.place == str(tmp_path / "table")
    assert "UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')" in str(raised.value.fix)
    at_least_once(tmp_path).check()


def test_a_table_without_it_is_taken(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", ROW, configuration={"delta.logRetentionDuration": "interval 1 days"})
    make(tmp_path).check()


def test_publishing_refuses_a_table_that_got_it_later(tmp_path: Path) -> None:
    """Nothing is committed; without the property the same delivery is written, once."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    expire(tmp_path)
    for _ in range(2):
        with pytest.raises(FatalError) as raised:
            destination.publish(delivery)
        assert raised.value.code == "delta.transactions_expire"
    assert ids(tmp_path) == []
    at_least_once(tmp_path).publish(delivery)
    assert ids(tmp_path) == [1]
    assert make(tmp_path).holds(delivery)


def test_it_is_looked_for_in_every_snapshot_that_is_committed_to(tmp_path: Path) -> None:
    """The property may be set between the check of the table and the commit."""
    destination = make(tmp_path)
    delivery = stage(destination, 1, [numbers(1)])
    with at("mid-publish", lambda: expire(tmp_path)), pytest.raises(FatalError) as raised:
        destination.publish(delivery)
    assert raised.value.code == "delta.transactions_expire"
    assert ids(tmp_path) == []

"""Any history of changes of two tables, in any deliveries, beside a model that applies record by record."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.changes_model import KINDS, TABLES, VALUES, Change, Model, by_id, create_tables
from lab.postgres_lab import PostgresLab

from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow
SHAPES = st.sampled_from([[("a", "b", "c")], [("a", "b")], [("a", "b", "c"), ("a", "b"), ("c",), ()]])


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    """Few keys, so that they meet; kinds, shapes and truncates more or less often, as the draw has it."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, unique=True))
    kinds += ["truncate"] * draw(st.integers(0, 1))
    shapes = draw(SHAPES)
    count = draw(st.integers(2, 6))
    keys, small = st.integers(1, count), st.integers(0, 9)
    one = st.builds(
        lambda kind, table, number, old, values, shape: Change(
            kind, table, number, old, {name: values[VALUES.index(name)] for name in shape}
        ),
        st.sampled_from(kinds),
        st.sampled_from(list(TABLES)),
        keys,
        keys,
        st.tuples(small, small, small),
        st.sampled_from(shapes),
    )
    return draw(st.lists(st.lists(one, min_size=1, max_size=12), min_size=1, max_size=4))


@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), border=st.integers(0, 12), block=st.sampled_from([1, 3, 100]))
def test_any_history_leaves_what_its_records_leave_one_by_one(
    lab: PostgresLab, on_conflict: str, history: list[list[Change]], border: int, block: int
) -> None:
    """However a delivery is cut into tasks and blocks; of its refused records all are named, and only those."""
    lab.execute(create_tables())
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}', on_conflict=on_conflict)
    model = Model(on_conflict)
    try:
        for changes in history:
            codes = [model.apply(change) for change in changes]
            records = [change.record() for change in changes]
            refused = [(place, code) for place, code in enumerate(codes) if code]
            if refused:
                with pytest.raises(Rejected) as error:
                    destination.publish(lab.stage(destination, records[:border], records[border:], block=block))
                assert [(one.place, one.nack.code) for one in error.value.refusals] == refused
                records = [record for record, code in zip(records, codes, strict=True) if not code]
            destination.publish(lab.stage(destination, records[:border], records[border:], block=block))
            assert {name: by_id(lab.rows(where)) for name, where in TABLES.items()} == model.tables
    finally:
        destination.close()
    assert lab.refused == []

"""Any history of changes of two tables, in any deliveries, compared with a model that applies record by record."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lab.changes_model import KINDS, TABLES, VALUES, Change, Model, by_id, create_tables
from lab.postgres_lab import PostgresLab

from conduit_dagster.sdk import Rejected

pytestmark = pytest.mark.slow
SHAPES = st.sampled_from([[("a", "b", "c")], [("a", "b")], [("a", "b", "c"), ("a", "b"), ("c",), ()]])


@st.composite
def histories(draw: st.DrawFn) -> list[list[Change]]:
    """Few keys, so that they collide; kinds, shapes and truncates with frequencies drawn at random."""
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
    """However a delivery is cut into tasks and blocks; all of its refused records are named, and only those."""
    lab.execute(create_tables())
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}', on_conflict=on_conflict)
    model = Model(on_conflict)
    try:
        for changes in history:
            codes = model.apply_all(changes)
            assume(not model.is_doubtful)
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


@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.permutations(range(1, 7)),
    order=st.permutations(range(6)),
    block=st.sampled_from([1, 3, 100]),
    data=st.data(),
)
def test_any_exchange_of_keys_leaves_every_row(
    lab: PostgresLab, on_conflict: str, keys: list[int], order: list[int], block: int, data: st.DataObject
) -> None:
    """As one statement of the source produces it, in any order of its rows, and between changes of other rows."""
    lab.execute(create_tables() + "; INSERT INTO t SELECT n, n, n, n FROM generate_series(1, 6) n")
    kind = data.draw(st.sampled_from(["move", "partial move"]))
    moves = [
        Change(kind, "t", keys[place], place + 1, {"a": place + 10}) for place in order if keys[place] != place + 1
    ]
    around = [Change("snapshot", "t", number, 0, {"a": number}) for number in (8, 9)]
    border = data.draw(st.integers(0, len(moves)))
    records = [change.record() for change in (around[0], *moves, around[1])]
    destination = lab.destination(table="t", on_conflict=on_conflict)
    destination.publish(lab.stage(destination, records[:border], records[border:], block=block))
    values = {key: place + 10 if key != place + 1 else place + 1 for place, key in enumerate(keys)}
    wanted = [(key, values[key], place + 1, place + 1) for place, key in enumerate(keys)]
    assert lab.rows() == [*sorted(wanted), (8, 8, None, None), (9, 9, None, None)]
    destination.close()

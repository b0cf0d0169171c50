"""Tables with row-level security: a change of a row that a policy hides would do nothing, and succeed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.postgres_lab import PostgresLab, change, create

from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError

_TABLE = """
    CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'hidden');
    ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT ALL ON SCHEMA public TO guest; GRANT ALL ON t TO guest
"""


@pytest.fixture
def guest(lab: PostgresLab) -> Iterator[PostgresLab]:
    """A user to whom the policies of the table apply."""
    lab.execute("CREATE ROLE guest LOGIN PASSWORD 'welcome'")
    lab.execute(_TABLE)
    yield PostgresLab(f"postgresql://guest:welcome@{lab.url.partition('@')[2]}", lab.root)
    lab.execute("DROP OWNED BY guest CASCADE; DROP ROLE guest")


POLICIES = [
    "CREATE POLICY p ON t USING (v <> 'hidden')",
    "CREATE POLICY p ON t FOR SELECT USING (true); CREATE POLICY q ON t FOR INSERT WITH CHECK (true)",
    "CREATE POLICY p ON t USING (true); CREATE POLICY q ON t AS RESTRICTIVE USING (v <> 'hidden')",
    "CREATE POLICY p ON t TO postgres_role USING (true)",
]
CHANGES = {
    "delete": change("delete", 2),
    "update": change("update", 2, v="b"),
    "new key": Record(2, {}, {"id": 3, "v": "b"}, {"id": 3}, {"id": 2}, "update"),
}


@pytest.mark.parametrize("made", CHANGES)
@pytest.mark.parametrize("policies", POLICIES)
def test_a_policy_that_may_hide_rows_is_refused(lab: PostgresLab, guest: PostgresLab, policies: str, made: str) -> None:
    lab.execute("DROP ROLE IF EXISTS postgres_role; CREATE ROLE postgres_role")
    lab.execute(policies)
    destination = guest.destination()
    with pytest.raises(FatalError, match="row-level security") as caught:
        guest.deliver(destination, [CHANGES[made]])
    assert caught.value.code == "postgres.no_privilege" and "a policy for guest" in str(caught.value.fix)
    assert lab.rows() == [(1, "a"), (2, "hidden")]
    destination.close()
    lab.execute("DROP TABLE t; DROP ROLE postgres_role")


@pytest.mark.parametrize("policy", ["USING (true)", "TO guest USING (true)"])
def test_policies_that_take_every_row_are_in_nobody_s_way(lab: PostgresLab, guest: PostgresLab, policy: str) -> None:
    lab.execute(f"CREATE POLICY p ON t {policy}")
    destination = guest.destination(key="id", on_conflict="update")
    guest.deliver(destination, [change("delete", 2), change("update", 1, v="b"), create(3, v="c")])
    assert lab.rows() == [(1, "b"), (3, "c")]
    destination.close()


@pytest.mark.parametrize("table", ["t", "{{ .Metadata.table }}"])
def test_row_level_security_is_not_in_the_way_of_the_owner(lab: PostgresLab, guest: PostgresLab, table: str) -> None:
    destination = lab.destination(table=table)
    lab.deliver(destination, [Record(1, {"table": "t"}, {"id": 3})])
    lab.deliver(destination, [Record(1, {"table": "t"}, None, {"id": 2}, operation="delete")])
    assert (lab.refused, lab.rows()) == ([], [(1, "a"), (3, None)])

"""What administrators set on a database: rights, names that need quotes, triggers of tables and of statements."""

from __future__ import annotations

from functools import partial

import pytest
from lab.postgres_lab import PostgresLab, change

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Rejected


def test_what_an_error_says_to_type_can_be_typed(lab: PostgresLab) -> None:
    """Names that need quotes have them."""
    lab.execute('CREATE SCHEMA "Shop"; CREATE TABLE "Shop"."Orders 1" (id int PRIMARY KEY, v int)')
    lab.execute("""CREATE ROLE "App-1" LOGIN PASSWORD 'welcome'; GRANT ALL ON SCHEMA "Shop" TO "App-1" """)
    user = PostgresLab(f"postgresql://App-1:welcome@{lab.url.partition('@')[2]}", lab.root)
    destination = user.destination(table='Shop."Orders 1"')
    update = partial(user.deliver, destination, [change("update", 1, v=1)])
    for given, call in (("SELECT", destination.check), ("INSERT", update)):
        lab.execute(f'REVOKE ALL ON "Shop"."Orders 1" FROM "App-1"; GRANT {given} ON "Shop"."Orders 1" TO "App-1"')
        with pytest.raises(FatalError) as error:
            call()
        lab.execute(str(error.value.fix).removeprefix("as the table's owner: ").partition(";")[0])
    user.deliver(destination, [change("update", 1, v=2)])
    assert lab.rows("Shop/Orders 1") == [(1, 2)]
    destination.close()
    lab.execute('DROP OWNED BY "App-1"; DROP ROLE "App-1"')


_AUDIT = """
    CREATE TABLE t (id int PRIMARY KEY, v int);
    CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END $$;
    CREATE TRIGGER audited BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION audited()
"""


@pytest.mark.parametrize("operation", ["create", "update"])
def test_a_trigger_that_lacks_a_table_is_named(lab: PostgresLab, operation: str) -> None:
    """Not the table of the records, which is there. If records name that, it can't be written: they are nacks."""
    lab.execute(_AUDIT)
    records = [change(operation, number) for number in range(2)]
    with pytest.raises(FatalError, match='"audit" does not exist') as error:
        lab.deliver(lab.destination(), records)
    assert "audited()" in str(error.value.fix) and "create the table" not in str(error.value.fix)
    with pytest.raises(Rejected, match='"audit" does not exist') as refused:
        lab.deliver(lab.destination(on_missing_table="nack"), records)
    assert [one.place for one in refused.value.refusals] == [0, 1]


_NO_TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v int)",
    """
    CREATE FUNCTION none_made() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ask the admins'; END $$;
    CREATE EVENT TRIGGER none_made ON ddl_command_start WHEN TAG IN ('CREATE TABLE AS')
    EXECUTE FUNCTION none_made()
    """,
)


@pytest.mark.parametrize("count", [1, 2])
def test_an_event_trigger_that_forbids_temporary_tables_refuses_no_record(lab: PostgresLab, count: int) -> None:
    lab.execute(_NO_TABLES[0])
    lab.destination().check()
    lab.execute(_NO_TABLES[1])
    with pytest.raises(FatalError, match="no temporary table: ask the admins") as error:
        lab.deliver(lab.destination(), [change("update", number) for number in range(count)])
    assert error.value.code == "postgres.no_privilege" and "event trigger" in str(error.value.fix)
    lab.execute("DROP EVENT TRIGGER none_made")

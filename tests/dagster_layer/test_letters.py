"""Dead letters in Dagster: what the asset shows, the check, and the jobs that replay or close them."""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster_layer.project_folder import TAKES_ALL, Folder

from conduit_dagster.state.dead_letters import STATES, DeadLetterQuery, reasons

LIMITED = "{plugin: builtin:file, window-size: 0, open-limit: 3, settings: {path: ./dead.jsonl}}"


def run(folder: Folder, kind: str, **config: Any) -> dg.ExecuteInProcessResult:
    """The pipeline's job of that kind."""
    op = {"replay": "numbers__replayed", "discard": "numbers__discard_letters"}[kind]
    job = folder.definitions.resolve_job_def(f"numbers__{kind}")
    return job.execute_in_process({"ops": {op: {"config": config}}}, folder.instance, raise_on_error=False)


def states(folder: Folder) -> dict[str, int]:
    """How many letters are in which state."""
    return {row["state"]: row["letters"] for row in reasons(folder.store, "numbers", DeadLetterQuery(STATES))}


def mend(folder: Folder, queue: str = TAKES_ALL) -> None:
    """Nothing is bad any more."""
    folder.numbers(0, queue=queue)
    path = folder.root / "pipelines" / "numbers.yaml"
    path.write_text(path.read_text().replace("after.n % 10 == 3", "False"))


def materialized(folder: Folder) -> int:
    """How often the asset of the dead letters was materialised."""
    key = dg.AssetKey(["numbers", "dead_letters"])
    return len(folder.instance.fetch_materializations(key, limit=100).records)


def newest_check(folder: Folder) -> tuple[bool, Any]:
    """The last result of ``no_dead_letters``, and the number of open letters in it."""
    key = dg.AssetCheckKey(dg.AssetKey(["numbers", "dead_letters"]), "no_dead_letters")
    [record] = folder.instance.event_log_storage.get_asset_check_execution_history(key, 1)
    assert record.evaluation is not None
    return record.evaluation.passed, record.evaluation.metadata["open"].value


def error_code(result: dg.ExecuteInProcessResult) -> Any:
    """Of the step that failed."""
    [event] = [one for one in result.all_events if one.event_type_value == "STEP_FAILURE"]
    data: Any = event.event_specific_data
    return data.user_failure_data.metadata["conduit/error_code"].value


def test_the_asset_shows_what_is_open(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    shown = folder.newest("numbers", "dead_letters")
    assert (shown["open"], shown["open_growth"], shown["records_dead_lettered"]) == (10, 10, 10)
    [reason] = [name for name in shown if name.startswith("open: numbers:bad")]
    assert shown[reason] == 10
    newest = (
        [record.data for record in shown["newest"].records] if hasattr(shown["newest"], "records") else shown["newest"]
    )
    assert len(newest) == 10
    folder.append(range(100, 120))
    assert folder.run().success
    assert [folder.newest("numbers", "dead_letters")[name] for name in ("open", "open_growth")] == [12, 2]


def test_a_check_fails_while_too_many_are_open(folder: Folder) -> None:
    folder.numbers(queue=LIMITED)
    verdicts = [folder.run().get_asset_check_evaluations()]
    mend(folder, LIMITED)
    assert run(folder, "replay").success
    verdicts.append(folder.run().get_asset_check_evaluations())
    found = [[one.passed for one in some if one.check_name == "open_dead_letters"][-1] for some in verdicts]
    assert found == [False, True]


def test_a_replay_from_the_ui(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    mend(folder)
    result = run(folder, "replay", where="after.n < 50", dry_run=True)
    assert result.success and states(folder) == {"open": 10}
    before = sorted(folder.delivered)
    assert run(folder, "replay", where="after.n < 50").success
    assert states(folder) == {"open": 5, "replayed": 5}
    assert sorted(folder.delivered) == sorted([*before, *range(3, 50, 10)])
    assert folder.newest("numbers", "dead_letters")["open"] == 5
    replayed = folder.newest("numbers", "dead_letters", "replayed")
    assert (replayed["letters"], replayed["replayed"], replayed["failed_again"]) == (5, 5, 0)
    assert run(folder, "replay").success and states(folder) == {"replayed": 10}
    assert error_code(run(folder, "replay")) == "dead_letters.none"


def test_a_replay_whose_letters_fail_again_fails(folder: Folder) -> None:
    """As ``dlq replay`` does; what else was sent is delivered, and shown. A run of the whole group only shows it."""
    folder.numbers()
    assert folder.run().success
    path = folder.root / "pipelines" / "numbers.yaml"
    path.write_text(path.read_text().replace("after.n % 10 == 3", "after.n == 3"))
    replayed = [dg.AssetKey(["numbers", "dead_letters", "replayed"])]
    assert error_code(run(folder, "replay")) == "dead_letters.failed_again"
    shown = folder.newest(*replayed[0].path)
    assert (shown["replayed"], shown["failed_again"], states(folder)) == (9, 1, {"open": 1, "replayed": 9})
    everything = folder.definitions.resolve_implicit_global_asset_job_def()
    alone = everything.execute_in_process(instance=folder.instance, asset_selection=replayed, raise_on_error=False)
    assert error_code(alone) == "dead_letters.failed_again"
    group = [*replayed, *(dg.AssetKey(["numbers", name]) for name in ("out", "dead_letters", "acks"))]
    assert everything.execute_in_process(instance=folder.instance, asset_selection=group).success


def test_a_run_of_the_whole_group_succeeds_where_no_letter_is_open(folder: Folder) -> None:
    """It is how a pipeline is drained; a replay alone is refused.

    The replayed letters are materialised: Dagster fails a backfill whose runs leave out an asset.
    """
    folder.numbers()
    folder.write("numbers.yaml", (folder.root / "pipelines" / "numbers.yaml").read_text().replace("== 3", "== 30"))
    everything = folder.definitions.resolve_implicit_global_asset_job_def()
    replayed = dg.AssetKey(["numbers", "dead_letters", "replayed"])
    group = [replayed, *(dg.AssetKey(["numbers", name]) for name in ("out", "dead_letters", "acks"))]
    result = everything.execute_in_process(instance=folder.instance, asset_selection=group, raise_on_error=False)
    assert result.success
    assert len(folder.delivered) == 50
    assert folder.newest(*replayed.path)["letters"] == 0
    alone = everything.execute_in_process(instance=folder.instance, asset_selection=[replayed], raise_on_error=False)
    assert error_code(alone) == "dead_letters.none"


def test_a_replay_names_the_destinations_that_it_fed(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    path = folder.root / "pipelines" / "numbers.yaml"
    path.write_text(path.read_text().replace("after.n % 10 == 3", "False").replace("after.n % 2 == 0", "after.n < 20"))
    assert run(folder, "replay").success
    replayed = folder.newest("numbers", "dead_letters", "replayed")
    assert replayed["fed: out"] == dg.AssetKey(["numbers", "out"])
    assert folder.newest("numbers", "out")["records_delivered"] == 8
    assets = folder.definitions.resolve_asset_graph()
    key = dg.AssetKey(["numbers", "dead_letters", "replayed"])
    assert assets.get(key).parent_keys == {dg.AssetKey(["numbers", "dead_letters"])}


def test_letters_are_discarded_from_the_ui(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    shown = materialized(folder)
    assert run(folder, "discard", note="tests", where="after.n < 30", dry_run=True).success
    assert states(folder) == {"open": 10} and materialized(folder) == shown  # nothing happened
    assert run(folder, "discard", note="tests", where="after.n < 30").success
    assert states(folder) == {"open": 7, "discarded": 3}
    assert folder.newest("numbers", "dead_letters")["open"] == 7
    assert newest_check(folder) == (False, 7)
    assert run(folder, "discard", note="tests").success
    assert newest_check(folder) == (True, 0)  # at once, not only at the next run
    assert error_code(run(folder, "discard", note=" ")) == "usage.note"
    assert error_code(run(folder, "discard", note="x", where="after.n <")) == "usage.expression"

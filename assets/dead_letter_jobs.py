"""Dagster jobs that replay or discard dead letters, each with a form for its config."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import dagster as dg
from pydantic import Field

from conduit_dagster.assets.asset_checks import as_evaluation, letter_verdicts
from conduit_dagster.assets.events import open_by_reason
from conduit_dagster.assets.names import job_name, job_tags
from conduit_dagster.assets.run_op import LoadedPipeline, failure, operator_of, read_again
from conduit_dagster.assets.stopping import Interruptible
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import DEAD_LETTERS
from conduit_dagster.engine.operate.filters import Filters
from conduit_dagster.engine.operate.letters import (
    NO_LETTERS,
    DeadLetterSelection,
    discard,
    parse_edit,
    replay,
    selection_of,
)
from conduit_dagster.engine.operate.operator_errors import failed_again
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, owned
from conduit_dagster.engine.operate.summaries import held_letters, letters_to_send, unusable_letters
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.resources.spark_resource import Spark, StateResource
from conduit_dagster.state.dead_letters import DeadLetterQuery, reasons


class LettersConfig(dg.Config):
    """Selection of open dead letters; without any filter, all of them."""

    node: str | None = Field(default=None, description="Nacked by this processor or destination.")
    code: str | None = Field(default=None, description="With this error code.")
    source: str | None = Field(default=None, description="From this source.")
    namespace: str | None = Field(default=None, description="Of this collection.")
    since: str | None = Field(default=None, description="Newer than 2h, 1d12h or 2026-08-02T10:00.")
    until: str | None = Field(default=None, description="Older than that.")
    where: str = Field(default="", description="Whose failed record matches an expression: after.amount > 100.")
    dry_run: bool = Field(default=False, description="Only show what would change.")

    def selection(self, pipeline: str) -> DeadLetterSelection:
        """Return the selection for the operation. Raises ``FatalError`` (``usage.*``)."""
        said = {one.name: value for one in fields(Filters) if (value := getattr(self, one.name, None)) is not None}
        return selection_of(Filters(**said), pipeline)


class ReplayConfig(LettersConfig):
    """Config of the replay job."""

    start: Literal["source", "node"] = Field(
        default="source", description="The original through the whole pipeline, or the failed record from its node on."
    )
    edits: list[str] = Field(default=[], description="Fields that are set first: .Payload.After.amount=0")


class DiscardConfig(LettersConfig):
    """Config of the discard job."""

    note: str = Field(description="The reason, for those who look later.")


class LetterDefinitions(NamedTuple):
    """Dagster definitions for a pipeline's dead letters."""

    replayed: dg.AssetsDefinition
    replay: Any
    discard: dg.JobDefinition


def define_letters(bound: BoundPipeline, spec: dg.AssetSpec, keys: AssetKeys) -> LetterDefinitions:
    """Return the asset that a replay writes, the replay job and the discard job."""
    loaded = LoadedPipeline(bound.id, bound.file, keys)
    replayed = _replayed(loaded, spec)
    name, tags = job_name(bound.id), job_tags(bound.id)
    job = dg.define_asset_job(
        replay_job_name(bound.id),
        selection=dg.AssetSelection.assets(spec.key),
        description=f"Sends open dead letters of pipeline {bound.id} through it again, each once. Stop it first.",
        tags=tags,
        executor_def=dg.in_process_executor,
    )
    return LetterDefinitions(replayed, job, _discarding(loaded, f"{name}__discard", tags))


def replay_job_name(pipeline: str) -> str:
    """Return the name of the job that sends a pipeline's dead letters again."""
    return f"{job_name(pipeline)}__replay"


def _replayed(loaded: LoadedPipeline, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    pipeline, file, keys = loaded
    job = replay_job_name(pipeline)

    def is_alone(context: dg.AssetExecutionContext) -> bool:
        """Return whether the run is for the dead letters only: one of the whole group is no failure for their sake."""
        return context.run.job_name == job or context.run.asset_selection == {spec.key}

    @dg.multi_asset(name=f"{job_name(pipeline)}__replayed", specs=[spec])
    def run(
        context: dg.AssetExecutionContext, config: ReplayConfig, conduit_spark: Spark, conduit_state: StateResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with Interruptible() as running:
            try:
                bound = read_again(pipeline, file, conduit_state.project)
                session = conduit_spark.spark_session
                options = RunOptions.of(conduit_state.project)
                holding = owned(bound, conduit_state.database, options, lambda: session, operator_of(context))

                def send() -> tuple[dict[str, Any], list[dict[str, Any]]]:
                    with holding as lock:
                        return _replay(lock, config, running), _open(lock)

                facts, left = running.run(pipeline, send)
            except ConduitError as error:
                if error.code != NO_LETTERS or is_alone(context):
                    raise failure(error) from None
                context.log.info(error.message)
                # a backfill fails, and what is behind it is left out, where an asset is not materialised
                yield dg.MaterializeResult(asset_key=spec.key, metadata=_NONE_SENT)
                return
            if config.dry_run:
                context.log.info(
                    f"{letters_to_send(facts):,} dead letters would be sent again{unusable_letters(facts)}"
                )
                return
            summary = f"{facts['replayed']:,} dead letters are delivered, {facts['failed']:,} failed again"
            summary += unusable_letters(facts)
            context.log.info(summary)
            for event in _events(bound, keys, facts, left):
                context.log_event(event)
            yield dg.MaterializeResult(asset_key=spec.key, metadata=_outcome(keys, facts))
            if facts["failed"] and is_alone(context):
                raise failure(failed_again(pipeline, summary))

    return run


def _replay(lock: PipelineLock, config: ReplayConfig, running: Interruptible) -> dict[str, Any]:
    pairs = [parse_edit(text) for text in config.edits]
    return replay(lock, config.selection(lock.id), config.start, pairs, config.dry_run, running.goes_on)


def _discarding(loaded: LoadedPipeline, name: str, tags: dict[str, str]) -> dg.JobDefinition:
    pipeline, file, keys = loaded

    @dg.op(name=f"{name}_letters")
    def discard_letters(context: dg.OpExecutionContext, config: DiscardConfig, conduit_state: StateResource) -> None:
        with Interruptible() as running:
            try:
                bound = read_again(pipeline, file, conduit_state.project)
                options = RunOptions.of(conduit_state.project)
                holding = owned(bound, conduit_state.database, options, _no_spark, operator_of(context))

                def close() -> tuple[dict[str, Any], list[dict[str, Any]]]:
                    with holding as lock:
                        return discard(lock, config.selection(pipeline), config.note, config.dry_run), _open(lock)

                facts, left = running.run(pipeline, close)
            except ConduitError as error:
                raise failure(error) from None
            if config.dry_run:
                many = facts["letters"] - facts["held"]
                context.log.info(f"{many:,} dead letters would be discarded{held_letters(facts)}")
                return
            many = f"{facts['discarded']:,} of {facts['letters']:,} dead letters"
            context.log.info(f"{many} are discarded{held_letters(facts)}: {config.note}")
            for event in _standing(bound, keys, left, {"discarded": facts["discarded"], "note": config.note}):
                context.log_event(event)

    @dg.job(
        name=name,
        tags=tags,
        description=f"Closes open dead letters of pipeline {pipeline} that will not be sent again. Stop it first.",
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        discard_letters()

    return job


def _no_spark() -> Any:
    raise AssertionError("closing dead letters needs no Spark")


def _open(lock: PipelineLock) -> list[dict[str, Any]]:
    return reasons(lock.store.engine, lock.id, DeadLetterQuery())


def _events(bound: BoundPipeline, keys: AssetKeys, facts: dict[str, Any], left: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield the events of a replay: a materialisation per destination fed, and those of the open letters."""
    for destination, records in facts["delivered"].items():
        metadata = {"records_delivered": records, "replay": facts["replay"]}
        yield dg.AssetMaterialization(keys.of(destination), metadata=metadata)
    yield from _standing(bound, keys, left, {"replayed": facts["replayed"]})


_NONE_SENT = {"letters": 0, "replayed": 0, "failed_again": 0}


def _outcome(keys: AssetKeys, facts: dict[str, Any]) -> dict[str, Any]:
    links = {f"fed: {name}": dg.MetadataValue.asset(keys.of(name)) for name in facts["delivered"]}
    numbers = {"letters": facts["letters"], "replayed": facts["replayed"], "failed_again": facts["failed"]}
    return {**numbers, "from": facts["from"], **links}


def _standing(bound: BoundPipeline, keys: AssetKeys, left: list[dict[str, Any]], more: dict[str, Any]) -> Iterator[Any]:
    """Yield the materialisation of the dead letters with the remaining open ones, and their checks."""
    still = sum(row["letters"] for row in left)
    metadata = {"open": still, **more, **open_by_reason(left)}
    yield dg.AssetMaterialization(keys.of(DEAD_LETTERS), metadata=metadata)
    for verdict in letter_verdicts(bound, still):
        yield as_evaluation(keys, verdict)

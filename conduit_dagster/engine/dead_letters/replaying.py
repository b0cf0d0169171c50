"""Pipelines with replay sources, and the end of a replay."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import compile_program
from conduit_dagster.engine.program import Replay
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.store import PipelineStore


def with_replay(bound: BoundPipeline, replay: Replay) -> BoundPipeline:
    """Return the pipeline with an added source for the dead letters of each of its sources."""
    program = msgspec.structs.replace(bound.program, replay=replay)
    return replace(bound, program=program, compiled=compile_program(program))


def with_open_replay(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """Return the pipeline with the replay of a step that is prepared but not done, for the next owner to finish."""
    if not any(step.decision is not None and step.plan.replay for step in state.open_steps):
        return bound
    unit = next(source.unit for source in state.sources.values() if source.is_replay)
    return with_replay(bound, msgspec.convert(unit, Replay))


def settle_letters(context: StepContext) -> None:
    """Reopen letters of an unfinished replay and remove files that no index names, once no step is open."""
    if any(source.is_replay for source in context.state.sources.values()):
        context.store.replays.give_back()
    archive = context.archive
    # listed before the index is read, and that under our epoch: an owner that was frozen here removes no file of a
    # newer one, since it either has not listed it or is refused the index
    there = archive.names()
    archive.remove(set(there) - context.store.replays.kept_parts() if there else ())


def give_back(store: PipelineStore) -> None:
    """Reopen the letters of a replay that no prepared step has, and drop a step that is only planned."""
    state = store.load()
    if not any(source.is_replay for source in state.sources.values()):
        return
    planned = next((step.plan for step in state.open_steps if step.decision is None and step.plan.replay), None)
    if planned is not None:
        store.void(planned.step)
    prepared = next((step.plan for step in state.open_steps if step.decision is not None and step.plan.replay), None)
    store.replays.give_back(prepared)


def unit_of(replay: Replay) -> dict[str, object]:
    """Return the unit of a replay's sources in the store."""
    return msgspec.to_builtins(replay)


learn(Replay)

"""A pipeline with dead letters that are sent again."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from conduit_dagster.engine.compiled import compile_program
from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.planner import BoundPipeline
from conduit_dagster.engine.program import Replay
from conduit_dagster.learn import learn
from conduit_dagster.state.pipeline_state import PipelineState
from conduit_dagster.state.store import PipelineStore


def with_replay(bound: BoundPipeline, replay: Replay) -> BoundPipeline:
    """The pipeline with a source for each of its sources' dead letters."""
    program = msgspec.structs.replace(bound.program, replay=replay)
    return replace(bound, program=program, compiled=compile_program(program))


def with_open_replay(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """The pipeline, with a replay that a step was prepared for and not done: whoever comes next finishes that step."""
    if not any(step.decision is not None and step.plan.replay for step in state.open_steps):
        return bound
    unit = next(source.unit for source in state.sources.values() if source.is_replay)
    return with_replay(bound, msgspec.convert(unit, Replay))


def settle_letters(loop: StepLoop) -> None:
    """Once no step is open: letters of a replay that ended before its end are open again, and files that no index names
    are removed."""
    if any(source.is_replay for source in loop.state.sources.values()):
        loop.store.replays.give_back()
    archive = loop.stager.archive
    # listed before the index is asked, and that under our epoch: an owner that was frozen here removes nothing of a
    # newer one's, whose files it has not seen or is not told of
    there = archive.names()
    archive.remove(set(there) - loop.store.replays.kept_parts() if there else ())


def give_back(store: PipelineStore) -> None:
    """Letters of a replay that no prepared step has are open again, and a step that is only planned is dropped."""
    state = store.load()
    if not any(source.is_replay for source in state.sources.values()):
        return
    planned = next((step.plan for step in state.open_steps if step.decision is None and step.plan.replay), None)
    if planned is not None:
        store.void(planned.step)
    prepared = next((step.plan for step in state.open_steps if step.decision is not None and step.plan.replay), None)
    store.replays.give_back(prepared)


def unit_of(replay: Replay) -> dict[str, object]:
    """What a replay's sources say of themselves in the store."""
    return msgspec.to_builtins(replay)


learn(Replay)

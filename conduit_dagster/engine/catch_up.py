"""Catch-ups requested by an operator, added to those of the pipeline's file."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.compiled_pipeline import compile_program
from conduit_dagster.engine.dead_letters.replay_route import with_open_replay
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.pipeline_state import PipelineState


def require_no_memory(bound: BoundPipeline, state: PipelineState) -> None:
    """Raise ``FatalError`` (``positions.remembering``) if records to be sent again would be dropped as duplicates."""
    pending = [one for one in state.sources.values() if one.is_sent_again and one.position < one.unit["upto"]]
    if pending and bound.compiled.stateful:
        nodes = ", ".join(bound.compiled.stateful)
        raise FatalError(
            f"{pending[0].late} is to be sent records again, and {nodes} would take them for duplicates",
            code="positions.remembering",
            node=bound.id,
            fix="remove it from the file until they are sent",
        )


def with_open_work(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """Return the pipeline with the sources of its unfinished work: a prepared replay, and ranges to be sent again."""
    return with_open_catch_ups(with_open_replay(bound, state), state)


def with_open_catch_ups(bound: BoundPipeline, state: PipelineState) -> BoundPipeline:
    """Return the pipeline with a log source for each destination that is still being sent records again.

    Only destinations whose catch-up, or one of its steps, is not done; the others need no sources of their own any
    more.
    """
    asked = [one for one in state.sources.values() if one.is_sent_again]
    steps = {step.plan.only for step in state.open_steps}
    names = {one.late for one in asked if one.position < one.unit["upto"] or one.late in steps}
    specs = [
        msgspec.structs.replace(spec, from_log=spec.from_log or spec.id in names) for spec in bound.program.destinations
    ]
    if specs == bound.program.destinations:
        return bound
    program = msgspec.structs.replace(bound.program, destinations=specs)
    return replace(bound, program=program, compiled=compile_program(program))

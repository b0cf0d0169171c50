"""One tick of a sensor: look, decide, carry out, for every pipeline of the code location."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from conduit_dagster.state.history import deprovision
from sensors.attendant import Attendant
from sensors.decisions import Decision
from sensors.files import Files
from sensors.known import File, Known, Stored
from sensors.runs import Runs
from sensors.store import KeptStore
from sensors.stored import Silence, stored

_POLL = 0.25
_UNKNOWN = Stored()


class Tick:
    """What a sensor does; lives as long as the code server's process."""

    def __init__(
        self, root: Path, jobs: frozenset[str], decide: Callable[[Known, int], Decision], finds_gone: bool = False
    ) -> None:
        self._decide, self._finds_gone = decide, finds_gone
        self._files, self._silence = Files(root, jobs), Silence()
        self._store = KeptStore()

    def run(self, context: dg.SensorEvaluationContext, stay: float = 0.0) -> dg.SensorResult | dg.SkipReason:
        """``stay``: seconds to go on looking, so that what happens between two ticks is not found late.

        Raises what the state store raises: Dagster shows it and tries again.
        """
        project, files = self._files.read()
        database = self._store.of(project)
        attendant, runs = Attendant(context.instance, database), Runs(context.instance)
        end = time.monotonic() + stay
        seen: dict[str, Stored] | None = None
        while True:
            rows = stored(database, self._silence, project.settings.state.lease)
            if rows != seen:
                runs.look()
                seen = rows
            before = len(attendant.requests)
            self._attend(context, files, rows, attendant, runs)
            # what fails together is restarted together: the next tick is seconds away
            settled = before == len(attendant.requests) > 0
            if settled or time.monotonic() + _POLL >= end:
                break
            time.sleep(_POLL)
        if self._finds_gone:
            for pipeline in self._files.gone(seen or {}):
                deprovision(database, pipeline)
        if attendant.requests or attendant.events:
            return dg.SensorResult(run_requests=attendant.requests, asset_events=attendant.events)
        return dg.SkipReason(f"nothing to do for {len(files)} pipelines")

    def _attend(
        self,
        context: dg.SensorEvaluationContext,
        files: list[File],
        rows: dict[str, Stored],
        attendant: Attendant,
        runs: Runs,
    ) -> None:
        for file in files:
            if attendant.has_requested(file.job):
                continue
            # one broken pipeline must not keep the others waiting
            try:
                known = Known(file, rows.get(file.pipeline, _UNKNOWN), runs.of(file))
                attendant.carry_out(known, self._decide(known, time.time_ns()))
            except Exception as error:  # noqa: BLE001
                context.log.error(f"pipeline {file.pipeline} was left out of this tick: {error}")


def sensor_of(tick: Tick, name: str, description: str, jobs: Sequence[Any], stay: float = 0.0) -> dg.SensorDefinition:
    """The sensor that runs ``tick`` as often as Dagster lets it, and stays with it for so many seconds."""

    @dg.sensor(
        name=name,
        jobs=jobs,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return tick.run(context, stay)

    return sensor

"""OpenLineage events of runs: START, then COMPLETE, ABORT or FAIL, with data sets and record counts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.run_options import Ended, Listen, ignore_run
from conduit_dagster.engine.run_status import RunOrigin
from conduit_dagster.extras import install_command
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Destination, Source
from conduit_dagster.secret_values import hide, masked

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    from conduit_dagster.config.project import Project

PRODUCER = "https://pypi.org/project/conduit-dagster"
_PATIENCE = 10.0
"""Seconds that the end of a run waits for its events to be accepted: they are never worth more."""
log = structlog.get_logger("conduit.lineage")


def listener_of(project: Project) -> Listen:
    """Return the listener configured in the project's settings; one that does nothing if none is configured.

    Raises ``FatalError`` if the client is missing (``lineage.not_installed``), or refuses its own configuration
    (``lineage.config_invalid``).
    """
    settings = project.settings.lineage
    if not settings.openlineage:
        return ignore_run
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        raise FatalError(
            "lineage.openlineage is on, and the package openlineage-python is not installed",
            code="lineage.not_installed",
            place=str(project.root / "conduit.yaml"),
            fix=f"{install_command('lineage')}, or set lineage.openlineage: false",
        ) from None
    try:
        # the client's own configuration sets the destination of events: OPENLINEAGE_URL, openlineage.yml and so on
        emitter = _Emitter(OpenLineageClient())
    except Exception as error:  # noqa: BLE001  # of any transport, whichever is configured
        raise FatalError(
            f"the OpenLineage client refuses its configuration: {masked(str(error)) or type(error).__name__}",
            code="lineage.config_invalid",
            place=str(project.root / "conduit.yaml"),
            fix="correct OPENLINEAGE_URL or openlineage.yml, or set lineage.openlineage: false",
        ) from None
    namespace = settings.namespace or project.root.name
    return lambda bound, origin, progress: _LineageRun(emitter, namespace, bound, origin).begin(progress)


class _Emitter:
    """Sends events in order, each in its own thread. A failure is logged and has no other effect."""

    def __init__(self, client: OpenLineageClient) -> None:
        self._client = client
        self._last: Thread | None = None

    def emit(self, event: Any) -> Thread:
        # a daemon thread: the process must not wait for a collector that never answers, as it would with an executor
        self._last = Thread(target=self._emit, args=(event, self._last), name="openlineage", daemon=True)
        self._last.start()
        return self._last

    def _emit(self, event: Any, earlier: Thread | None) -> None:
        if earlier is not None:
            earlier.join()
        try:
            self._client.emit(event)
        except Exception as error:  # noqa: BLE001  # whatever it is, records are worth more
            fix = "look at OPENLINEAGE_URL or openlineage.yml"
            log.warning("a lineage event was not sent", cause=hide(str(error)), fix=fix)


class _LineageRun:
    """One run of one pipeline, as OpenLineage sees it."""

    def __init__(self, emitter: _Emitter, namespace: str, bound: BoundPipeline, origin: RunOrigin) -> None:
        self._emitter, self._namespace, self._bound = emitter, namespace, bound
        self._origin, self._id = origin, _run_id(origin, bound.id)

    def begin(self, progress: RunProgress) -> Ended:
        """Send START; return the callback for the run's result. ``progress`` continues from earlier attempts."""
        read, delivered = dict(progress.sources), dict(progress.delivered)
        self._send("START", {}, {}, {})

        def ended(result: RunResult) -> None:
            more = result.progress
            counts = _less(more.sources, read), _less(more.delivered, delivered)
            sent = self._send(_state(result), *counts, _error_facets(result))
            # the process may end right after this
            sent.join(_PATIENCE)
            if sent.is_alive():
                log.warning("a lineage event was not taken in time", seconds=_PATIENCE)

        return ended

    def _send(
        self, state: str, read: Mapping[str, int], delivered: Mapping[str, int], facets: dict[str, Any]
    ) -> Thread:
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import documentation_job, job_type_job

        config = self._bound.config
        kind = "STREAMING" if config.trigger.kind == "continuous" else "BATCH"
        about: dict[str, Any] = {"jobType": job_type_job.JobTypeJobFacet(kind, "CONDUIT_DAGSTER", "PIPELINE")}
        if config.description:
            about["documentation"] = documentation_job.DocumentationJobFacet(hide(config.description))
        event = RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self._id, {**self._parent(), **facets}),
            job=Job(self._namespace, self._bound.id, about),
            producer=PRODUCER,
            inputs=self._inputs(read),
            outputs=self._outputs(delivered),
        )
        return self._emitter.emit(event)

    def _parent(self) -> dict[str, Any]:
        """Return the facet that names Dagster's run, if this one is a part of it."""
        from openlineage.client.facet_v2 import parent_run as facet

        if not self._origin.part_of:
            return {}
        job = facet.Job(self._namespace, self._origin.part_of)
        return {"parent": facet.ParentRunFacet(facet.Run(self._origin.run), job)}

    def _inputs(self, read: Mapping[str, int]) -> list[InputDataset]:
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.facet_v2 import input_statistics_input_dataset as facet

        nodes = self._bound.compiled.sources
        return [
            InputDataset(*named, {"inputStatistics": facet.InputStatisticsInputDatasetFacet(read.get(name, 0))})
            for name, named in _named([(node.id, node.node, node.source) for node in nodes])
        ]

    def _outputs(self, delivered: Mapping[str, int]) -> list[OutputDataset]:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import output_statistics_output_dataset as facet

        nodes = self._bound.compiled.outputs
        return [
            OutputDataset(
                *named, {"outputStatistics": facet.OutputStatisticsOutputDatasetFacet(delivered.get(name, 0))}
            )
            for name, named in _named([(node.id, node.node, node.destination) for node in nodes])
        ]


def _named(nodes: Sequence[tuple[str, str, Source | Destination]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield id, and namespace and name, of each connector with a data set. ``nodes``: id, node and connector."""
    for name, node, connector in nodes:
        try:
            dataset = connector.dataset
            named = None if dataset is None else (dataset.namespace, dataset.name)
        except Exception as error:  # noqa: BLE001  # a plugin's code: records are worth more
            log.warning("a connector could not name its data set", node=node, cause=hide(str(error)))
            continue
        if named is not None:
            yield name, named


def _run_id(origin: RunOrigin, pipeline: str) -> str:
    """Return the id of Dagster's run if it is the pipeline's own, and one of each pipeline's if it has several.

    A run outside of Dagster gets a new one.
    """
    try:
        run = uuid.UUID(origin.run)
    except ValueError:
        from openlineage.client.uuid import generate_new_uuid

        return str(generate_new_uuid())
    return str(uuid.uuid5(run, pipeline) if origin.part_of else run)


def _state(result: RunResult) -> str:
    if result.error is not None:
        return "FAIL"
    return "COMPLETE" if result.drained else "ABORT"


def _error_facets(result: RunResult) -> dict[str, Any]:
    from openlineage.client.facet_v2 import error_message_run

    if result.error is None:
        return {}
    message = hide(f"{result.error.code}: {result.error.message}")
    return {"errorMessage": error_message_run.ErrorMessageRunFacet(message, "PYTHON")}


def _less(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: number - before.get(name, 0) for name, number in now.items()}

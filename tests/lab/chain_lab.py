"""Two pipelines in a chain: ``a`` reads a file and logs it, ``p`` reads ``a``."""

from __future__ import annotations

from typing import Any

from conduit_dagster.engine.operate.consumer_lag import drop_reader
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.operate.rewind import rewind
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.state.database import reading
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.readers import ReadingSource, readers_of
from lab.support import DECODE, Lab, destination, queue, source

from .stored_events import newest_events

ROWS = [{"i": i} for i in range(100)]
SMALL = {"log-segment-size": "1KB", "batch-size": 10}
"""Every ten entries are a segment. A reader added after compaction gets only the remaining entries, so add it first."""
LOGGED = {"log": "records", "strategy": "exactly-once"}


def chained(upstream: str = "a", connector: str = "", name: str = "in", **more: Any) -> dict[str, Any]:
    """Return a source that reads another pipeline."""
    settings = {"pipeline": upstream, **({"connector": connector} if connector else {})}
    return {"id": name, "type": "source", "plugin": "builtin:pipeline", "settings": settings, **more}


def upstream(lab: Lab, *connectors: Any, **more: Any) -> None:
    """Create the pipeline ``a``."""
    delivery = {**LOGGED, **more.pop("delivery", {})}
    lab.pipeline(
        id="a",
        connectors=connectors or [source(), destination("first")],
        delivery=delivery,
        **{"dead-letter-queue": queue(path="./dead-a.jsonl"), **more},
    )


def downstream(lab: Lab, *connectors: Any, **more: Any) -> None:
    """Create the pipeline ``p``, which decodes."""
    name = more.pop("id", "p")
    delivery = {"strategy": "exactly-once", **more.pop("delivery", {})}
    lab.pipeline(
        id=name,
        connectors=connectors or [chained(), destination("out")],
        processors=more.pop("processors", [DECODE]),
        delivery=delivery,
        **{"dead-letter-queue": queue(path=f"./dead-{name}.jsonl"), **more},
    )


def runs(lab: Lab, *names: str) -> None:
    """Run each pipeline, one after another; none may fail."""
    for name in names:
        result = lab.run(name)
        assert result.error is None, (name, result.error, result.error.code)


def readers(lab: Lab, pipeline: str = "a") -> dict[str, int]:
    """Return the readers of its logs, and the first offset that each still needs."""
    with lab.store() as database, reading(database) as connection:
        found: list[ReadingSource] = readers_of(connection, pipeline)
    return {reader.name: reader.offset for reader in found}


def events(lab: Lab, pipeline: str, *kinds: str) -> list[dict[str, Any]]:
    """Return events of these kinds, the oldest first."""
    with lab.store() as database:
        found = [row for row in newest_events(database, pipeline, 1000) if row["event"] in kinds]
    return [{"event": row["event"], **row["detail"]} for row in reversed(found)]


def entries(lab: Lab) -> list[int]:
    """Return the number of entries in each segment of the log of ``a``."""
    with lab.store() as database, database.connect() as connection:
        return [part.entries for part in LogStore("a").segments(connection, "in")]


def drop(lab: Lab, reader: str = "p:in") -> dict[str, Any]:
    """Drop a reader like ``offsets drop``."""
    with lab.store() as database:
        return drop_reader(database, "a", reader, "a test", 10.0)


def rewound(lab: Lab, pipeline: str, name: str, wish: Any, force: bool = False) -> dict[str, Any]:
    """Rewind like ``positions rewind``."""
    catalogue = lab.catalogue()
    bound, project = catalogue.get(pipeline), catalogue.project
    assert bound is not None
    options = RunOptions(project.staging_url, log=project.log_url)
    with lab.store() as database, owned(bound, database, options, lambda: None, "a test") as lock:  # type: ignore[arg-type]
        return rewind(lock, database, name, wish, force)

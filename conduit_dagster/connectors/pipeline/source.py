"""The ``pipeline`` source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field
from typing_extensions import override

from conduit_dagster.connectors.pipeline.logged import LogReadMode
from conduit_dagster.connectors.pipeline.output import OutputReadMode
from conduit_dagster.connectors.pipeline.published import ProjectView
from conduit_dagster.connectors.pipeline.read_mode import Upstream, upstream_of, which_connector
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.sdk import Block, ConnectorContext, ConnectorSettings, Limit, Position, ReadOptions, Source, Split
from conduit_dagster.state.readers import PLUGIN


class PipelineSourceSettings(ConnectorSettings):
    """Reads another pipeline of the project, which need not be running."""

    pipeline: str = Field(min_length=1)
    """The other pipeline's id."""
    connector: str = ""
    """One of its connectors. For a source: its records as they were logged; that pipeline needs ``log: records``. For a
    destination with the plugin ``file``: the published part of its output. Default: the only source.
    """


class PipelineSource(Source):
    """Logged records of another pipeline of the project, or its published output.

    Records keep their metadata, except for source connector and read time, which this source sets. Every ack counts in
    the other pipeline: its log keeps records that this source has not handled end to end. Unpublished output is not
    read.
    """

    name = PLUGIN
    Settings = PipelineSourceSettings
    settings: PipelineSourceSettings
    sets_metadata = True
    gives_json = True
    lag_unit = "records"

    def __init__(self, settings: PipelineSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._project = ProjectView(context.root)
        if (upstream := upstream_of(settings.model_extra)) is not None and upstream.output is not None:
            self.lag_unit = "bytes"  # pyright: ignore[reportAttributeAccessIssue]  # records of a file are not counted

    @lazy_property
    def _upstream(self) -> Upstream:
        found = upstream_of(self.settings.model_extra)
        if found is None and not self.settings.connector:
            raise which_connector(self.settings.pipeline)
        return found or Upstream(self.settings.connector)

    @lazy_property
    def _mode(self) -> LogReadMode | OutputReadMode:
        """How the data is read; both classes have the methods that this source passes on."""
        pipeline, upstream = self.settings.pipeline, self._upstream
        if upstream.output is not None:
            return OutputReadMode(pipeline, upstream, self.context, self._project)
        return LogReadMode(pipeline, upstream.connector, self.context.full_id, self._project)

    @property
    def reads(self) -> tuple[str, str]:
        """Id of the other pipeline, and its connector."""
        return self.settings.pipeline, self._upstream.connector

    @property
    @override
    def unit(self) -> dict[str, Any]:
        """Identity of the data: pipeline and connector; for an output also its path."""
        return self._mode.unit

    def initial(self) -> Position:
        """Return the position before the oldest existing record."""
        return self._mode.initial()

    def horizon(self) -> Any:
        """Return the current end of the other pipeline's log or published output."""
        return self._mode.horizon()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return how far one step may read. Raises ``FatalError`` (``chain.*``) if the next records are missing."""
        return self._mode.latest(start, limit, horizon)

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Split into parts that name their files, so that tasks never query the state store."""
        return self._mode.split(start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the records, with this source's own metadata set."""
        yield from self._mode.read(split, options, self.context.labels)

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` (``chain.*``) if a range is no longer complete."""
        self._mode.verify(start, end)

    def place(self, position: Position) -> Any:
        """Return an offset, or a place in a file."""
        return self._mode.place(position)

    def relocate(self, split: Split) -> Split:
        """Return the split with the current files that hold it."""
        return self._mode.relocate(split)

    def lag(self, position: Position) -> int | None:
        """Return the number of unread logged records, or of unread published bytes."""
        return self._mode.lag(position)

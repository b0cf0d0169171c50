"""The owner of a slot: a source, and the project that it is of, in the comment on the publication that it created.

Projects may have pipelines of the same ids, such as a test and a production system with the same files. What one of
them confirms, or drops with its pipeline, is lost to the other.
"""

from __future__ import annotations

from pathlib import Path

from conduit_dagster.config.project import Project
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.state.claim import project_id

_MARK = "conduit_dagster: "
"""Prefix of the comment; the id of its owner follows."""
_PROJECT = " of project "
"""Before the project's id, which earlier versions left out. Ids of connectors have no blanks."""


class SlotOwner:
    """A source as the owner of a slot and its publication."""

    def __init__(self, context: ConnectorContext) -> None:
        self._id, self._root = context.full_id, context.root

    @lazy_property
    def _project(self) -> str:
        return project_id(Project.find(Path(self._root)).home)

    @property
    def comment(self) -> str:
        """The comment on a publication that this source creates."""
        return f"{_MARK}{self._id}{_PROJECT if self._project else ''}{self._project}"

    def is_own(self, comment: str) -> bool:
        """Return whether this source, or an earlier version of it, created the publication with this comment."""
        owner, _, project = comment.removeprefix(_MARK).partition(_PROJECT)
        return comment.startswith(_MARK) and owner == self._id and project in ("", self._project)

    def other(self, comment: str) -> str | None:
        """Return the source that created the publication with this comment; None if it is this one, or none did."""
        return None if not comment.startswith(_MARK) or self.is_own(comment) else comment.removeprefix(_MARK)

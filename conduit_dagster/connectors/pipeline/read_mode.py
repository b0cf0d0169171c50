"""Upstream of a chained source: found by the planner in the project's files, and passed on in its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.record import Record, change_metadata
from conduit_dagster.recovery.errors import FatalError, TransientError

PLUGIN = "pipeline"
"""Same value as in ``state.readers``, which imports SQLAlchemy: validating files without chains must not wait for that.
"""
KEY = "~upstream"
"""Setting that the planner adds. No file can contain it, since a file's settings are checked by name."""
READABLE = ("opencdc/json", "payload/json", "template")
"""Formats of an output that can be read back, the default first."""


class Upstream(msgspec.Struct, frozen=True):
    """A connector of another pipeline."""

    connector: str
    output: dict[str, str] | None = None
    """Settings of the ``file`` destination whose output is read; None for a source, whose log is read."""

    def encode(self) -> str:
        """Return the value of the setting."""
        return msgspec.json.encode(self).decode()


def upstream_of(extra: Mapping[str, Any] | None) -> Upstream | None:
    """Return the upstream that the planner found; None without the planner's setting."""
    text = (extra or {}).get(KEY)
    return None if text is None else msgspec.json.decode(text, type=Upstream)


learn(Upstream)


def which_connector(pipeline: str) -> FatalError:
    """Return the error for a source whose settings name no connector and were not resolved by a planner."""
    return FatalError(
        f"which connector of pipeline {pipeline} is to be read is not known",
        code="chain.which_connector",
        fix="name it: settings.connector",
    )


def log_gone(log: str, reader: str, position: int, end: int) -> FatalError:
    """Return the error for a log that ends before its reader's position."""
    message = f"the log of {log} ends before offset {end}, and {reader} has read it up to {position}"
    return FatalError(
        f"{message}: it was begun anew" if end else f"{log} keeps no log of records any more, and {reader} reads it",
        code="chain.log_gone",
        place=log,
        fix=f"set delivery.log: records there and run it; or begin anew: {_rewind(reader)} --to-start",
    )


def log_gap(log: str, reader: str, first: int, stop: int, further: int) -> FatalError:
    """Return the error for unread entries that are not in the log, and never will be."""
    return FatalError(
        f"of the log of {log} the entries {first} to {stop - 1}, which {reader} has not read, are gone: compacted while"
        " the log did not wait for it (it was dropped, or rewound), or never logged",
        code="chain.log_gap",
        place=log,
        fix=f"to go on without them: {_rewind(reader)} --to {further} --force;"
        " where it logs its records itself, give the connector another id: it begins with what is whole",
    )


def _rewind(reader: str) -> str:
    pipeline, _, connector = reader.rpartition(":")
    return f"conduit-dagster positions rewind {pipeline} {connector}"


def output_gone(output: str, reader: str, place: str, what: str) -> FatalError:
    """Return the error for missing output that was read before, or was to be read."""
    writer = output.partition(":")[0]
    return FatalError(
        f"the output of {output} is not what it was when {reader} read it: {what}",
        code="chain.output_gone",
        place=place,
        fix="move it back as it was (a copy is another file); or begin anew with what is there:"
        f" {_rewind(reader)} --to-start; if that ends with the same error, let a run of {writer} adopt the file first"
        " (if-changed: adopt)",
    )


def output_moved(output: str, reader: str, paths: tuple[str, str], unread: int) -> FatalError:
    """Return the error for an output that was given another path before all of it was read. ``paths``: old and new."""
    (old, new), (own, _, connector) = paths, reader.rpartition(":")
    return FatalError(
        f"{output} writes to {new} now, and {reader} has not read {unread} bytes that it published to {old}",
        code="chain.output_gone",
        place=old,
        fix=f"set its path back to {old}, run {own} and not {output.partition(':')[0]}, then change it again;"
        f" or go on without them: give {connector} another id",
    )


def output_elsewhere(output: str, reader: str, paths: tuple[str, str]) -> TransientError:
    """Return the error for an output that was given another path during the reader's run. ``paths``: old and new."""
    old, new = paths
    return TransientError(
        f"{output} writes to {new} now, and this run of {reader} reads {old}, where no more will come",
        code="chain.output_elsewhere",
        place=old,
        fix=f"start {reader.partition(':')[0]} again, so that it reads the files as they are now (in Dagster, a restart"
        " does)",
    )


def not_readable(output: str, reader: str, place: str, name: str) -> FatalError:
    """Return the error for unread lines in a format that can't be read back."""
    return FatalError(
        f"{output} wrote {name} from here on, which can't be read back as records, and {reader} has not read it",
        code="chain.not_readable",
        place=place,
        fix=f"let it write {READABLE[0]} to another path, and give the source that reads it another id",
    )


def no_record(place: str, why: str) -> FatalError:
    """Return the error for a line that the other pipeline can't have written in its current format."""
    return FatalError(
        f"a line is not an opencdc/json record: {why}",
        code="chain.no_record",
        place=place,
        fix="the file had other lines before that pipeline wrote to it, or another format: give it a path of its own",
    )


def relabel(records: list[Record], labels: dict[str, str]) -> None:
    """Set the metadata that a chained source sets itself; the other entries stay as the other pipeline wrote them."""
    change_metadata(records, lambda given: {**given, **labels})

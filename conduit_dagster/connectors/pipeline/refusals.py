"""What can be wrong between a source and the pipeline that it reads, once both are running."""

from __future__ import annotations

from conduit_dagster.recovery.errors import FatalError


def which_connector(pipeline: str) -> FatalError:
    """The file names none, and nobody has looked which one is meant."""
    return FatalError(
        f"which connector of pipeline {pipeline} is to be read is not known",
        code="chain.which_connector",
        fix="name it: settings.connector",
    )


def log_gone(log: str, reader: str, position: int, end: int) -> FatalError:
    """The log ends before the place where its reader stands."""
    message = f"the log of {log} ends before offset {end}, and {reader} has read it up to {position}"
    return FatalError(
        f"{message}: it was begun anew" if end else f"{log} keeps no log of records any more, and {reader} reads it",
        code="chain.log_gone",
        place=log,
        fix=f"set delivery.log: records there and run it; or begin anew: {_rewind(reader)} --to-start",
    )


def log_gap(log: str, reader: str, first: int, stop: int, further: int) -> FatalError:
    """Entries that the reader has not read are not in the log, and never will be."""
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
    """What was read before, or was to be read, is not there."""
    return FatalError(
        f"the output of {output} is not what it was when {reader} read it: {what}",
        code="chain.output_gone",
        place=place,
        fix=f"put it back; or begin anew with what is there: {_rewind(reader)} --to-start",
    )


def no_record(place: str, why: str) -> FatalError:
    """A line that the other pipeline can't have written as it writes now."""
    return FatalError(
        f"a line is no record as opencdc/json has it: {why}",
        code="chain.no_record",
        place=place,
        fix="the file had other lines before that pipeline wrote to it, or another format: give it a path of its own",
    )

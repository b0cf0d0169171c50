"""Settings of the ``file`` connector."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import ByteSize, Duration, comma_separated
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.connectors.path_settings import check_collection, valid_path
from conduit_dagster.sdk import ConnectorSettings

GLOB = frozenset("*?[")


class FileSourceSettings(ConnectorSettings):
    """Reads lines. The position is the byte offset after a record, the key its line number."""

    path: str
    """The file to follow line by line; or a folder, or a glob such as ``in/*.jsonl``, whose files are read by name,
    without those of folders in it. A compressed file is refused.
    """
    exclude: str = ""
    """Names that a folder or glob leaves out: one glob such as ``*.gz``, or several, separated by commas."""
    on_gone: Literal["fail", "skip"] = Field("fail", alias="on-gone")
    """What to do when an unread range is missing (deleted, truncated, replaced): ``fail`` names it and stops; ``skip``
    loses it and continues with the existing data.
    """
    rotate_wait: Duration = Field(5.0, alias="rotate-wait")
    """How long a file with a successor (it was renamed, or the folder has a later name) must have been unchanged before
    a last line without its line end counts as complete. A run that drains its sources waits for that time.
    """
    unterminated_wait: Duration = Field(5.0, alias="unterminated-wait")
    """How long a run that drains its sources waits for the end of a half-written last line, from the last change of its
    file. After that the line is left for a later run, with a warning.
    """
    read_unterminated: bool = Field(False, alias="read-unterminated")
    """Whether a run that drains its sources reads a last line without its line end as a record, after waiting for
    ``unterminated-wait``: for files whose writer never ends the last line. Text appended to that line later becomes a
    separate record.
    """
    max_line: ByteSize = Field(268_435_456, alias="max-line")
    """Maximum line length in bytes. A longer line stops the pipeline: most likely the file does not consist of lines.
    """
    header: bool = False
    """Whether the first line of every file is a header. It is not a record; the metadata ``file.header`` of the file's
    records holds it, and ``csv.decode`` takes the names of the columns from there.
    """
    collection: str = ""
    """The records' collection (``opencdc.collection``), their key in the commit log: a name such as ``orders``, or a
    regular expression (RE2) with one group, searched in the file's name: ``^([a-z]+)-`` extracts ``orders`` from
    ``orders-2024.jsonl``. Files that do not match have no collection. Empty: records have no collection.
    """

    @property
    def excluded(self) -> tuple[str, ...]:
        """The globs of ``exclude``."""
        return comma_separated(self.exclude)

    _check_path = field_validator("path")(valid_path)
    _check_collection = field_validator("collection")(check_collection)


class FileDestinationSettings(ConnectorSettings):
    """Writes lines into one ordered file, or into a folder of parts."""

    path: str
    """The file to write. With a trailing slash, or if it is a folder, every step becomes a folder of parts."""
    layout: Literal["auto", "file", "folder"] = "auto"
    """``file``: one ordered file; ``folder``: a folder of parts; ``auto``: depends on ``path``."""
    format: str = Field("opencdc/json", alias="sdk.record.format")
    """``opencdc/json`` (Conduit's record), ``template``, or ``payload/json`` (plain payload lines)."""
    format_options: str = Field("", alias="sdk.record.format.options")
    """The template, such as ``{{ toJson .Payload.After }}``."""
    if_changed: Literal["fail", "adopt"] = Field("fail", alias="if-changed")
    """What to do when another process changed, replaced or removed the file: ``fail`` stops and reports it; ``adopt``
    continues after the existing content. Only for one ordered file.
    """

    _check_path = field_validator("path")(valid_path)

    @model_validator(mode="after")
    def _check_format(self) -> FileDestinationSettings:
        make_format(self.format, self.format_options)
        return self

    @field_validator("path")
    @classmethod
    def _no_glob(cls, path: str) -> str:
        if GLOB & set(path):
            raise refuse("a destination's path can't be a glob", fix="name one file or folder")
        return path

"""Settings of the ``file`` connector."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from conduit_dagster.config.scalars import Duration
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.sdk import ConnectorSettings

GLOB = frozenset("*?[")


def not_empty(path: str) -> str:
    """The path. Raises where there is none."""
    if not path.strip():
        raise PydanticCustomError("path", "path is empty", {"fix": "name a file, a folder or a glob"})
    return path


class FileSourceSettings(ConnectorSettings):
    """Reads lines. The position is the byte offset after a record, the key its line number."""

    path: str
    """The file to follow line by line; or a folder, or a glob such as ``in/*.jsonl``, whose files are read by name."""
    on_gone: Literal["fail", "skip"] = Field("fail", alias="on-gone")
    """What to do when a range that was not read yet is gone (deleted, truncated, replaced): ``fail`` names it and
    stops; ``skip`` loses it and goes on with what is there."""
    rotate_wait: Duration = Field(5.0, alias="rotate-wait")
    """How long a file that another one follows (it was renamed, or a later name is in the folder) must have been quiet
    before a last line without its end is taken for whole. A run that drains its sources waits until then."""
    unterminated_wait: Duration = Field(5.0, alias="unterminated-wait")
    """How long a run that drains its sources waits for the end of a half-written last line, counted from the last
    change of its file. Then the line is left for a later run, with a warning."""
    read_unterminated: bool = Field(False, alias="read-unterminated")
    """Whether a run that drains its sources takes a last line without its end for a record, once it has waited for
    ``unterminated-wait``: for files whose writer ends no last line. What is appended to that line later is a record of
    its own."""
    max_line: int = Field(268_435_456, alias="max-line", gt=0)
    """The longest line in bytes. A longer one stops the pipeline: it is more likely not a file of lines at all."""

    _check_path = field_validator("path")(not_empty)


class FileDestinationSettings(ConnectorSettings):
    """Writes lines into one ordered file, or into a folder of parts."""

    open_keys: ClassVar[tuple[str, ...]] = ("sdk.*",)

    path: str
    """The file to write. With a slash at its end, or where it is a folder, every step becomes a folder of parts."""
    layout: Literal["auto", "file", "folder"] = "auto"
    """``file``: one ordered file; ``folder``: a folder of parts; ``auto``: as ``path`` says."""
    format: str = Field("opencdc/json", alias="sdk.record.format")
    """``opencdc/json`` (Conduit's record), ``template``, or ``payload/json`` (plain payload lines)."""
    format_options: str = Field("", alias="sdk.record.format.options")
    """The template, such as ``{{ toJson .Payload.After }}``."""
    if_changed: Literal["fail", "adopt"] = Field("fail", alias="if-changed")
    """What to do when somebody else changed, replaced or removed the file: ``fail`` stops and says so; ``adopt`` goes
    on after what is there. Only for one ordered file."""

    _check_path = field_validator("path")(not_empty)

    @model_validator(mode="after")
    def _check_format(self) -> FileDestinationSettings:
        make_format(self.format, self.format_options)
        return self

    @field_validator("path")
    @classmethod
    def _no_glob(cls, path: str) -> str:
        if GLOB & set(path):
            raise PydanticCustomError(
                "path", "a destination's path can't be a glob", {"fix": "name one file or folder"}
            )
        return path


def as_source(settings: Any) -> FileSourceSettings:
    """The settings as the source's own model."""
    return cast(FileSourceSettings, settings)


def as_destination(settings: Any) -> FileDestinationSettings:
    """The settings as the destination's own model."""
    return cast(FileDestinationSettings, settings)

"""Settings of ``spark:FORMAT``: a few of our own, and the format's options."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator

from conduit_dagster.config.scalars import Duration
from conduit_dagster.connectors.columnar.columns import ColumnsSettings, RowSourceSettings
from conduit_dagster.connectors.path_settings import check_name, possible_path
from conduit_dagster.sdk import ConnectorSettings
from conduit_dagster.secret_values import names_credential

_OPTION: Final = "option."


class FormatSettings(ConnectorSettings):
    """Settings common to source and destination."""

    open_keys: ClassVar[tuple[str, ...]] = ("*",)

    path: str = ""
    """The path that Spark loads or saves, for formats that have one; relative to the project root."""
    register_: str = Field("", alias="register")
    """``FILE.py:CLASS`` of a Python data source (``pyspark.sql.datasource.DataSource``) in the project, which is
    registered with the session first. Data sources of installed packages need no setting.
    """

    _check_path = field_validator("path")(possible_path)

    @field_validator("register_")
    @classmethod
    def _check_register(cls, text: str) -> str:
        if text and not re.fullmatch(r"[^:]+\.py:[^\W\d]\w*", text):
            raise ValueError("register must be FILE.py:CLASS")
        return text

    def identity(self, *said: Any) -> str:
        """Return a digest that identifies the data, together with ``said``. Leaves out credentials, which do not."""
        options = {key: value for key, value in self.options.items() if not names_credential(key)}
        every = [self.path, self.register_, options, *said]
        return hashlib.sha256(json.dumps(every, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def options(self) -> dict[str, str]:
        """Options of the format: every setting that is not ours; ``option.NAME`` for one with the same name as ours."""
        given = {key: str(value) for key, value in (self.model_extra or {}).items() if not key.startswith("sdk.")}
        return {key.removeprefix(_OPTION): value for key, value in given.items()}


class SparkSourceSettings(FormatSettings, RowSourceSettings):
    """Reads the rows of ``spark.read.format(FORMAT)``, or follows those of ``spark.readStream.format(FORMAT)``.

    All other settings are the format's options, passed on unchanged.
    """

    collection: str = ""
    """The records' collection (``opencdc.collection``), their key in the commit log: a name such as ``orders``. Empty:
    records have none. ``option.collection`` is the format's own option of that name.
    """
    read: Literal["batch", "stream"] = "batch"
    """``batch``: existing rows, once; ``stream``: existing and new rows, from formats that Spark can stream."""
    ddl: str = Field("", alias="schema")
    """The schema as Spark's DDL, such as ``id BIGINT, name STRING``, for formats that need one or would infer it."""
    refresh: Duration | None = None
    """With ``batch``: age at which a snapshot is followed by a new one, such as ``1h``. Empty: only one snapshot."""
    poll: Duration = 1.0
    """With ``stream``: wait before the next query after one without new rows."""
    keep: Duration = 86_400.0
    """How long landed rows are kept after their ack, for ``positions rewind``."""

    _check_collection = field_validator("collection")(check_name)


class SparkDestinationSettings(FormatSettings, ColumnsSettings):
    """Appends with ``write.format(FORMAT)``, a column per field of created and snapshot records.

    All other settings are the format's options, passed on unchanged. ``csv``, ``json`` and ``xml`` write times with
    microseconds, in UTC, and ``csv`` keeps blanks at the ends of a text, unless options say otherwise.
    """

    hash_column: str = Field("", alias="hash-column")
    """Name of an additional column for the delivery hash: a repeated delivery has the same one, so readers can detect
    it. No field of the records may have this name.
    """

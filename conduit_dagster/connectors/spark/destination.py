"""The destination ``spark:FORMAT``: rows appended by a Spark data source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_dagster import storage
from conduit_dagster.connectors.columnar.columns import Schema, parse_columns
from conduit_dagster.connectors.columnar.parquet_writer import ColumnsDestination, ColumnsWriter, ParquetPart
from conduit_dagster.connectors.columnar.rows import RowReader, readable
from conduit_dagster.connectors.parquet.destination import FolderColumns
from conduit_dagster.connectors.spark.driver_session import asked, literal
from conduit_dagster.connectors.spark.settings import SparkDestinationSettings
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Target, Writer, WriterTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AS_STAGED: Final = {
    # what is staged never has days of the Julian calendar
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # a part that can't be read, if only for a moment, would be left out, and the rest count as delivered
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}
"""Options by which Spark reads what is staged whole, whatever its own settings say of files."""
_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    # the offsets of early times have seconds, which the format leaves out
    "timeZone": "UTC",
}
_WHOLE: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {**_TIMES, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
    "json": _TIMES,
    "xml": _TIMES,
}
"""Options without which Spark's formats of text cut off a part of a value: microseconds, and blanks at its ends."""


def whole(format_: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the format's options: the given ones, and others that write every value whole."""
    names = {name.lower() for name in given}  # as Spark compares them
    if "timestampformat" in names:
        names.add("timezone")  # the zone belongs to it: it may show none
    return {name: value for name, value in _WHOLE.get(format_, {}).items() if name.lower() not in names} | dict(given)


class SparkDestination(ColumnsDestination):
    """Rows that Spark appends: tasks stage Parquet, the driver runs ``write.format(FORMAT)`` for each delivery.

    At least once: a Spark data source does not know delivery hashes. With ``hash-column``, readers can detect repeats.
    Whether an append is all or nothing depends on the format. ``csv``, ``json`` and ``xml`` write times with
    microseconds, in UTC, and ``csv`` the blanks at either end of a text, unless their options say otherwise.
    """

    name = "spark"
    Settings = SparkDestinationSettings
    settings: SparkDestinationSettings
    format: ClassVar[str] = "FORMAT"
    strategies = frozenset({"at-least-once", "at-most-once"})

    @property
    def address(self) -> str:
        """Path, or a digest of the options without credentials."""
        path = self.settings.path
        return self.context.resolve(path) if path else f"{self.name} {self.settings.identity()}"

    def field_of(self, column: str) -> str | None:
        """Return the column's own name; None for the hash column."""
        return None if column == self.settings.hash_column else column

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer of Parquet that looks up the columns when it gets its first rows."""

        def reader(offered: Callable[[], Schema]) -> RowReader | None:
            schema = parse_columns(self.settings.columns) or self._agreed(task, offered)
            if schema is None:
                return None
            self._require_free(schema.names)
            return RowReader(schema, self.settings.unknown_fields, "spark")

        return ColumnsWriter(ParquetPart(task), "spark", reader, readable)

    def _require_free(self, names: Sequence[str]) -> None:
        """Raise ``FatalError`` if a field of the records has the name of the hash column, which would replace it."""
        name = self.settings.hash_column
        if name.lower() in map(str.lower, names):  # as Spark compares names
            raise FatalError(
                f"the records have a field {name}, and the setting hash-column would replace it by the delivery hash",
                code="spark.hash_column_taken",
                place=self.address,
                fix="give hash-column a name that no field has",
            )

    def _agreed(self, task: WriterTask, offered: Callable[[], Schema]) -> Schema | None:
        """Return the columns fixed by the first rows of any task.

        Stored beside the executions' folders: a lost part is staged again with the same columns.
        """
        execution, _, consumer = task.staging.rpartition("/")
        own = f"{consumer}-{self.settings.identity(self.name)}"
        folder = storage.join(execution.rpartition("/")[0], "~columns", own)
        return FolderColumns(folder, pa.schema([])).agreed(offered)

    def publish(self, delivery: Delivery) -> Target:
        """Append the delivery with one write. Raises ``TransientError`` with Spark's message."""
        if delivery.parts:
            with asked(self.context, self.format, "be written to", self.settings.register_) as (spark, _):
                if self.settings.register_:
                    # makes it the current thread's session, the only one where a writer looks up Python data sources
                    spark.createDataFrame([], "nothing INT")
                self._save(_staged(spark, delivery), delivery)
        return delivery.target

    def _save(self, frame: Any, delivery: Delivery) -> None:
        from pyspark.sql import functions as f

        if self.settings.hash_column:
            # the step may have been staged before the setting had this value
            self._require_free(frame.columns)
            frame = frame.withColumn(self.settings.hash_column, f.lit(delivery.hash))
        options = whole(self.format, self.settings.options)
        writer = frame.write.format(self.format).options(**options).mode("append")
        writer.save(self.address) if self.settings.path else writer.save()


def _staged(spark: SparkSession, delivery: Delivery) -> Any:
    """Return the staged rows as a frame. Raises ``OSError`` if the columns of a part can't be read."""
    from pyspark.sql.pandas.types import from_arrow_schema  # imported late: validating must not import pyspark

    urls = [storage.join(delivery.staging, part.name) for part in delivery.parts]
    with storage.open_read(urls[0]) as file:
        columns = pq.read_schema(file)
    # by Spark's own settings, binary could be text, and a time without a zone an instant
    reader = spark.read.schema(from_arrow_schema(columns, prefer_timestamp_ntz=True)).options(**_AS_STAGED)
    return reader.parquet(*map(literal, urls))

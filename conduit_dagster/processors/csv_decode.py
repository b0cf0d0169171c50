"""``csv.decode``: decode a line of CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from pydantic import field_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference, kind_of
from conduit_dagster.processors.common.csv_columns import CsvColumns, columns_of, csv_error
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.processors.common.setting_kinds import DataField
from conduit_dagster.readable import excerpt
from conduit_dagster.record import FILE_HEADER, Document
from conduit_dagster.sdk import (
    DROP,
    Drop,
    Example,
    ProcessError,
    ProcessorContext,
    ProcessorSettings,
    Record,
    Result,
    Results,
)

_MARK: Final = "\ufeff"
_MOST_HEADERS: Final = 256
_FEW: Final = 100
_OPEN: Final = "unexpected end of data"
_BY_SPARK: Final = (
    "a quoted field with line ends cannot be read line by line; read such a file with the source spark:csv and "
    "multiLine: true"
)
_LINE_END: Final = "new-line character seen in unquoted field"

# no limit on fields: the source limits lines
csv.field_size_limit(sys.maxsize)


class CsvDecodeSettings(ProcessorSettings):
    """Settings of ``csv.decode``."""

    field: DataField = ".Payload.After"
    """The field that holds a line of CSV: raw data, or text in a document."""
    columns: str = ""
    """The columns, as `NAME` or `NAME:TYPE`: `id:int, name, amount:float`. Types: `string` (the default), `int`,
    `float`, `bool`. All columns in their order; with a header, those that must be in it, in any order, and its other
    columns are text. A name with a comma or quote is written as in CSV; one with a colon must have a type: `"last,
    first:string"`.
    """
    delimiter: str = ","
    r"""The character between fields; a tab may be written `\t`."""
    quote: str = '"'
    """The character around fields that hold delimiters or quotes, doubled inside of them. Empty: none."""
    nulls: str = ""
    """The text that means null in a column of any type, quoted or not, such as `NULL`. By default it is the empty text.
    """
    trim: bool = False
    """Whether blanks around names and values are removed."""

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, text: str) -> str:
        columns_of(text)
        return text

    @field_validator("delimiter")
    @classmethod
    def _check_delimiter(cls, text: str) -> str:
        text = "\t" if text == r"\t" else text
        if len(text) != 1 or text in "\r\n":
            raise refuse("the delimiter is not one character", fix=r'such as "," or ";" or "\t"')
        return text

    @field_validator("quote")
    @classmethod
    def _check_quote(cls, text: str) -> str:
        if len(text) > 1 or text in ("\r", "\n"):
            raise refuse("the quote is not one character", fix="leave it out, or leave it empty for none")
        return text

    @override
    def model_post_init(self, context: Any, /) -> None:
        if self.delimiter == self.quote:
            raise refuse(f"delimiter and quote are both {self.quote}", fix="choose another delimiter or quote")
        if self.trim and " " in (self.delimiter, self.quote):
            raise refuse("blanks cannot be removed where a blank is the delimiter or quote", fix="leave out trim")


class CsvDecode(InPlaceProcessor):
    """Decode a line of CSV to a document.

    The column names come from the file's header, which the `file` source passes on with `header: true`; without a
    header they come from the setting `columns`. Values are text unless `columns` gives them a type, and null if they
    are empty (`nulls`). An `int` has any length; a `float` whose digits a 64-bit number can't hold is nacked; `bool` is
    `true`, `false`, `t`, `f`, `1` or `0`, in lower case, upper case or capitalised.

    A blank line is dropped; within a document, or for the key, it becomes null. A field that is missing, null or
    already a document is left unchanged. A byte-order mark and the carriage return of a CRLF line end are ignored.

    A line is nacked if it has another number of fields or a value of another type, is not UTF-8, repeats the names of
    two or more columns, ends within quotes, or has a quote in an unquoted field. A quoted field with line ends can't be
    read line by line: read such files with the source `spark:csv` and `multiLine: true`.
    """

    name = "csv.decode"
    keeps_fields = True
    Settings = CsvDecodeSettings
    settings: CsvDecodeSettings
    examples = (
        Example(
            "A file without a header",
            {"columns": "id:int, name, amount:float"},
            Record("1", {}, b'1,"Ana, Zagreb",'),
            Record("1", {}, {"id": 1, "name": "Ana, Zagreb", "amount": None}),
        ),
        Example(
            "A file whose source has `header: true`",
            {"columns": "amount:float", "delimiter": ";"},
            Record("1", {FILE_HEADER: "id;amount"}, b"007;12.5"),
            Record("1", {FILE_HEADER: "id;amount"}, {"id": "007", "amount": 12.5}),
        ),
        Example("A field too many", {"columns": "id:int, name"}, Record("1", {}, b"1,Ana,x"), "csv.decode.fields"),
    )

    def __init__(self, settings: CsvDecodeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self.field = Reference.parse(settings.field)
        self._drops_blank = self.field.root == "after" and not self.field.path
        self._kinds = columns_of(settings.columns)
        self._known: dict[str, CsvColumns] = {}

    @property
    @override
    def reads_key(self) -> bool:
        return self.field.root == "key"

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        if not self._drops_blank:
            return super().process_block(records)
        if self._decode_all(records):
            return cast(list[Result], records)
        results = Results(records)
        for start in range(0, len(records), _FEW):
            few = records[start : start + _FEW]
            for place, record in enumerate([] if self._decode_all(few) else few, start):
                result = self._one(record)
                if result is not record:
                    results.put(place, result)
        return results

    def _decode_all(self, records: list[Record]) -> bool:
        """Decode the payloads of all records, several times as fast as one by one; of none if one is unusual."""
        try:
            documents = self._documents(records)
        except Exception:  # noqa: BLE001  # `change` decides about each record
            return False
        for record, document in zip(records, documents, strict=True):
            record.after = document
        return True

    def _documents(self, records: list[Record]) -> list[Document]:
        """Return the documents of all lines. Raises for anything but the usual case."""
        [header] = {record.metadata.get(FILE_HEADER, "") for record in records}
        payloads: Any = [record.after for record in records]
        text = b"\n".join(payloads).decode()
        if _MARK in text:
            raise ValueError
        lines = text.split("\n")
        if self.settings.trim and not all(map(str.strip, lines)):
            raise ValueError
        rows = list(self._reader(lines))
        # a quoted field that continues on the next line gives fewer rows than lines
        if not len(rows) == len(lines) == len(records):
            raise ValueError
        if self.settings.quote in text and any(map(self._has_stray_quote, rows, lines)):
            raise ValueError
        return self._columns(header).documents([*map(self._trimmed, rows)] if self.settings.trim else rows)

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        settings = self.settings
        return csv.reader(
            lines,
            delimiter=settings.delimiter,
            quotechar=settings.quote or None,
            quoting=csv.QUOTE_MINIMAL if settings.quote else csv.QUOTE_NONE,
            skipinitialspace=settings.trim,
            strict=True,
        )

    def _has_stray_quote(self, row: list[str], line: str) -> bool:
        """Return whether an unquoted field contains a quote: it may be the rest of a field with line ends."""
        quote = self.settings.quote
        if not quote or quote not in "".join(row):
            return False
        quoted = (f"{quote}{value.replace(quote, quote + quote)}{quote}" for value in row if quote in value)
        return any(value not in line for value in quoted)

    def _trimmed(self, row: list[str]) -> list[str]:
        return [value.strip() for value in row] if self.settings.trim else row

    @override
    def process(self, record: Record) -> Record | Drop:
        if self._drops_blank and isinstance(record.after, bytes) and self._is_blank(record.after):
            return DROP
        return super().process(record)

    def _is_blank(self, line: bytes | str) -> bool:
        trim = self.settings.trim
        if isinstance(line, bytes):
            return not line.strip(None if trim else b"\r\n")
        return not line.strip(None if trim else "\r\n")

    @override
    def change(self, record: Record) -> None:
        self.field.create_way(record)
        value = self.field.get(record)
        if value is not None and not isinstance(value, dict):
            self.field.set(record, self._decoded(value, record.metadata.get(FILE_HEADER, "")))

    def _decoded(self, value: Any, header: str) -> Document | None:
        if not isinstance(value, bytes | str):
            raise self._named(csv_error("invalid", f"is {kind_of(value)}, not a line of CSV"))
        if self._is_blank(value):
            return None
        try:
            return self._columns(header).document(self._row(_text(value)))
        except ProcessError as error:
            raise self._named(error, f"; the line begins with {excerpt(value)}") from None

    def _named(self, error: ProcessError, more: str = "") -> ProcessError:
        return ProcessError(f"{self.settings.field} {error.message}{more}", code=error.code)

    def _row(self, line: str) -> list[str]:
        """Return the fields of one line. Raises ``ProcessError``."""
        try:
            row = next(self._reader([line.removeprefix(_MARK)]))
        except csv.Error as error:
            raise csv_error("invalid", _reason(str(error))) from None
        if self._has_stray_quote(row, line):
            what = (
                f"holds a quote in a field that is not in quotes: {_BY_SPARK}, or set quote empty if it has no meaning"
            )
            raise csv_error("invalid", what)
        return self._trimmed(row)

    def _columns(self, header: str) -> CsvColumns:
        """Return the columns of files with this header, empty for none. Raises ``ProcessError``."""
        found = self._known.get(header)
        if found is None:
            found = self._made_columns(header)
            if len(self._known) >= _MOST_HEADERS:
                self._known.clear()
            self._known[header] = found
        return found

    def _made_columns(self, header: str) -> CsvColumns:
        if not header:
            if not self._kinds:
                what = "has no columns: set header: true at the file source, or list the columns in the setting columns"
                raise csv_error("header", what)
            return CsvColumns(list(self._kinds), self._kinds, self.settings.nulls)
        if "\ufffd" in header:
            raise csv_error("header", "is of a file whose header is not UTF-8")
        try:
            names = self._row(header)
        except ProcessError as error:
            raise csv_error("header", f"is of a file whose header {error.message}") from None
        return CsvColumns.with_header(names, self._kinds, self.settings.nulls)


def _text(line: bytes | str) -> str:
    if isinstance(line, str):
        return line
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise csv_error("invalid", f"is not UTF-8 ({error.reason} at byte {error.start})") from None


def _reason(error: str) -> str:
    if error == _OPEN:
        return f"ends within quotes: {_BY_SPARK}"
    if error.startswith(_LINE_END):
        return "holds a line end outside quotes: lines must end with LF or CRLF"
    return f"is not a line of CSV: {error}"

"""``python``: call a function of the project."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, Field
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.processors.common.modules import code_text, module_of
from conduit_dagster.record import copy, copy_document
from conduit_dagster.recovery.classify import ENDINGS
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import (
    DROP,
    Drop,
    Example,
    Nack,
    ProcessError,
    Processor,
    ProcessorContext,
    ProcessorSettings,
    Record,
    Result,
)
from conduit_dagster.sdk.processor import nack_of

_PLACE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
ROW, ERROR = "_row", "_error"


def _function(text: str) -> str:
    if not _PLACE.fullmatch(text):
        raise refuse("this names no function", fix="MODULE:FUNCTION, such as transforms:clean", column=0)
    return text


class PythonSettings(ProcessorSettings):
    """Settings of ``python``."""

    function: Annotated[str, AfterValidator(_function)]
    """`MODULE:FUNCTION`: `transforms:clean` is `clean` in the project's `transforms.py`, `lib.text:clean` in
    `lib/text.py`.
    """
    per: Literal["record", "block", "arrow"] = "record"
    """What the function is given: a record, a list of records, or an Arrow table of payloads."""
    source: str = Field("", alias="module.source")
    """The module's text. It is read when the pipeline starts."""


class Python(Processor):
    """Call a function of a module in the project.

    The module is sent to the tasks as text; it may import packages installed there, but no other module of the project.

    Per record it returns a record, a list of records, or `DROP`; per block, a list with such a result, or a `Nack`, for
    each record. An exception nacks the record; per block it fails the step. Per `arrow` it gets a table with one row
    per payload, each of which must be a document, and returns a table of the new payloads: with the same number of
    rows, or with a column `_row` that holds the index of each row's original (no row: the record is dropped; several:
    it is split). Text in a column `_error` nacks the record; so does a field of these names in its payload. In the
    table, integers beside fractions are fractions, and a document has the fields of all; a value that the function does
    not change goes on as it was. A second parameter receives the processor's context.

    The result must depend on the record alone. The function runs with all rights of the worker: it is not sandboxed.
    """

    name = "python"
    Settings = PythonSettings
    settings: PythonSettings
    examples = (
        Example(
            "A function of a record",
            {
                "function": "transforms:total",
                "module.source": "def total(record):\n    record.after['total'] = sum(record.after['amounts'])\n"
                "    return record\n",
            },
            Record("1", {}, {"amounts": [1, 2]}),
            Record("1", {}, {"amounts": [1, 2], "total": 3}),
        ),
    )

    def __init__(self, settings: PythonSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        function = _found(settings, context.node_id)
        self._call: Callable[[Any], Any] = function
        if _takes_two(function):
            self._call = lambda given: function(given, context)

    @classmethod
    @override
    def travelling(cls, settings: Mapping[str, str], root: str) -> dict[str, str]:
        if not _PLACE.fullmatch(settings.get("function", "")) or settings.get("module.source"):
            return dict(settings)
        path = _module_path(settings, root)
        fix = "put it there, or correct MODULE in MODULE:FUNCTION"
        text = code_text(path, "the module", code="python.unreadable", place=str(path), fix=fix)
        return {**settings, "module.source": text}

    @classmethod
    @override
    def files(cls, settings: Mapping[str, str], root: str) -> Sequence[Path]:
        return (_module_path(settings, root),) if _PLACE.fullmatch(settings.get("function", "")) else ()

    @override
    def process(self, record: Record) -> Record | list[Record] | Drop:
        return self._call(record)

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        if self.settings.per == "record":
            return super().process_block(records)
        if self.settings.per == "block":
            return list(self._call(records))
        return self._columns(records)

    # -- Arrow --------------------------------------------------------------------------------------------------

    def _columns(self, records: list[Record]) -> list[Result]:
        results: list[Result] = [_unfit(record.after) for record in records]
        chosen = [place for place, result in enumerate(results) if result is DROP]
        try:
            made = self._of_table([records[place] for place in chosen]) if chosen else []
        except (TransientError, *ENDINGS):
            raise
        except BaseException:  # noqa: BLE001  # the fault of one record or of the function: try each record alone
            made = [self._alone(records[place]) for place in chosen]
        for place, result in zip(chosen, made, strict=True):
            results[place] = result
        return results

    def _alone(self, record: Record) -> Result:
        try:
            return self._of_table([record])[0]
        except BaseException as error:  # noqa: BLE001  # any error of the author's code nacks that record
            return nack_of(error)

    def _of_table(self, records: Sequence[Record]) -> list[Result]:
        import pyarrow as pa

        rows = [cast("dict[str, Any]", record.after) for record in records]
        names = list(dict.fromkeys(name for row in rows for name in row))
        values = [[row.get(name) for row in rows] for name in names]
        columns = [pa.array(column) for column in values]
        alike = {
            name: column.to_pylist()
            for name, column, given in zip(names, columns, values, strict=True)
            if pa.types.is_nested(column.type) or (pa.types.is_floating(column.type) and int in set(map(type, given)))
        }
        if names:
            table = self._call(pa.Table.from_arrays(columns, names))
        else:  # only a struct array tells a table without columns its number of rows
            table = self._call(pa.Table.from_struct_array(pa.array(rows, pa.struct([]))))
        if not isinstance(table, pa.Table):
            raise ProcessError(f"the function returned a {type(table).__name__}, not a table", code="python.result")
        made = table.to_pylist()
        if ROW not in table.column_names and len(made) != len(records):
            message = f"the function returned {len(made)} rows for {len(records)}, and no column {ROW}"
            raise ProcessError(message, code="python.result")
        return _shared_out(records, made, partial(_put_back, rows, alike))


def _put_back(given: Sequence[dict[str, Any]], alike: Mapping[str, list[Any]], row: dict[str, Any], of: int) -> None:
    """Give a row the values of its original that only Arrow has changed: its columns have one type."""
    for name, column in alike.items():
        if name in row and name in given[of] and row[name] == column[of]:
            row.update(copy_document({name: given[of][name]}))


def _shared_out(
    records: Sequence[Record], rows: Sequence[dict[str, Any]], put_back: Callable[[dict[str, Any], int], None]
) -> list[Result]:
    """Return the result of each record from the rows derived from it."""
    shares: list[list[dict[str, Any]]] = [[] for _ in records]
    failed: dict[int, str] = {}
    for place, row in enumerate(rows):
        of = row.pop(ROW, place)
        if not isinstance(of, int) or not 0 <= of < len(records):
            raise ProcessError(f"the column {ROW} holds {of!r}: there are {len(records)} rows", code="python.result")
        if (error := row.pop(ERROR, None)) is not None:
            failed[of] = str(error)
        put_back(row, of)
        shares[of].append(row)
    # only now: after an error, each record is tried alone, as it was given
    made = [
        [copy(record) if place else record for place in range(len(share))]
        for record, share in zip(records, shares, strict=True)
    ]
    for some, share in zip(made, shares, strict=True):
        for one, row in zip(some, share, strict=True):
            one.after = row
    return [Nack("python.nacked", failed[i]) if i in failed else some for i, some in enumerate(made)]


_NO_DOCUMENT: Final = Nack(
    "field.unresolved", ".Payload.After does not contain structured data: put json.decode before it"
)


_RESERVED: Final = Nack(
    "python.reserved",
    f".Payload.After has a field {ROW} or {ERROR}, as the function's result may have: put field.rename before it",
)


def _unfit(after: Any) -> Nack | Drop:
    """Return why a payload can't be a row of the table; a Drop, which is replaced by its result, if it can."""
    if not isinstance(after, dict):
        return _NO_DOCUMENT
    # the function would seem to have returned them: one record's payload would go to another
    return _RESERVED if ROW in after or ERROR in after else DROP


def _takes_two(function: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds for one in inspect.signature(function).parameters.values()) > 1


def _found(settings: PythonSettings, node: str) -> Callable[..., Any]:
    module, _, name = settings.function.partition(":")
    file = f"{module.replace('.', '/')}.py"
    try:
        function = getattr(module_of("conduit_modules", module.replace(".", "_"), settings.source, file), name, None)
    except (Exception, SystemExit) as error:  # the user's module may raise anything while it loads
        raise FatalError(
            f"the module can't be loaded: {type(error).__name__}: {error}",
            code="python.invalid",
            node=node,
            place=file,
            fix="correct it; it may import what is installed, and no other module of the project",
        ) from error
    if not callable(function):
        message, fix = f"the module has no function {name}", f"def {name}(record): …"
        raise FatalError(message, code="python.invalid", node=node, place=file, fix=fix)
    return function


def _module_path(settings: Mapping[str, str], root: str) -> Path:
    return Path(root, *settings["function"].partition(":")[0].split(".")).with_suffix(".py")

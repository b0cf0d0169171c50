"""``custom.javascript``: call a user-defined JavaScript function."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.javascript.script import Outcome, Script, ScriptError, ScriptRecordError
from conduit_dagster.processors.common.modules import code_text
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import DROP, Example, Nack, Processor, ProcessorContext, ProcessorSettings, Record, Result


class CustomJavascriptSettings(ProcessorSettings):
    """Settings of ``custom.javascript``: one of ``script`` and ``script.path``."""

    script: str = ""
    """The script: it defines `function process(record)`."""
    path: str = Field("", alias="script.path")
    """A file that holds it; a relative path starts at the project. It is read when the pipeline starts."""
    time: PositiveDuration = Field(1.0, alias="limit.time")
    """The processor time that it may take for one record (ours)."""
    memory: int = Field(64, alias="limit.memory", ge=1)
    """The megabytes that it may hold altogether (ours)."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if bool(self.script) == bool(self.path):
            raise refuse("exactly one of script and script.path is needed", fix="give one of the two")
        return self


class CustomJavascript(Processor):
    """Run ``process(record)`` of a script on each record.

    It returns the record, changed or not, or a new one; null drops the record, and an exception nacks it.

    A record has ``Operation``, ``Metadata``, ``Key`` and ``Payload`` with ``Before`` and ``After``; its position can't
    be changed. Documents are objects, raw data is an array of bytes: ``RawData("text")`` creates it, ``String(data)``
    reads it as text. ``Record()``, ``StructuredData()`` and ``logger.Info().Str("k", "v").Msg("text")`` work as in
    Conduit; ``require`` is not available.

    Numbers are JavaScript's: integers beyond 2^53 lose digits, as in Conduit. ``Date`` is the time of the step, and
    ``Math.random`` depends on the record alone, so that a repeat gives the same result. A script must not rely on state
    kept between records: any record may be the first, and a record may be processed twice. Where its records together
    fill `limit.memory`, it is loaded again: its global variables start anew, and the record runs once more.

    Scripts run in a separate process, one per worker. A record that alone exceeds `limit.time` or `limit.memory` is
    nacked (`javascript.too_long`, `javascript.memory`), and the others continue; `validate` refuses a script whose top
    level exceeds them. A log entry's field gets the prefix `script_` if its name is reserved by the log, such as
    `event`. The amount of logging is not limited.
    """

    name = "custom.javascript"
    Settings = CustomJavascriptSettings
    settings: CustomJavascriptSettings
    shares_records = True
    examples = (
        Example(
            "A metadata entry, and text before the payload",
            {
                "script": 'function process(rec) { rec.Metadata["processed"] = "true"; '
                'rec.Payload.After = RawData("hello, " + String(rec.Payload.After)); return rec; }'
            },
            Record("1", {"m": "x"}, b"world"),
            Record("1", {"m": "x", "processed": "true"}, b"hello, world"),
        ),
        Example(
            "Some are dropped",
            {"script": "function process(rec) { return rec.Payload.After.id > 1 ? rec : null; }"},
            Record("1", {}, {"id": 1}),
            DROP,
        ),
        Example(
            "What it throws is a nack",
            {"script": 'function process(rec) { throw new Error("no"); }'},
            Record("1", {}, {"id": 1}),
            "javascript.failed",
        ),
    )

    def __init__(self, settings: CustomJavascriptSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._rolls = "random" in settings.script
        try:
            self._script = Script(settings.script, settings.time, settings.memory)
        except ScriptError as error:
            raise self._invalid(error) from None

    def _invalid(self, error: ScriptError) -> FatalError:
        return FatalError(
            f"the script can't be used: {error}",
            code="javascript.invalid",
            node=self.context.node_id,
            place=self.settings.path or None,
            fix="function process(record) { …; return record; }",
        )

    @classmethod
    @override
    def travelling(cls, settings: Mapping[str, str], root: str) -> dict[str, str]:
        found = dict(settings)
        path = found.pop("script.path", "")
        if not path or found.get("script"):
            return dict(settings)
        fix = "script.path starts at the project's folder"
        text = code_text(Path(root, path), f"the script {path}", code="javascript.unreadable", place=path, fix=fix)
        return {**found, "script": text}

    @classmethod
    @override
    def files(cls, settings: Mapping[str, str], root: str) -> Sequence[Path]:
        path = "" if settings.get("script") else settings.get("script.path", "")
        return (Path(root, path),) if path else ()

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        key = self.context.record_key
        seeds = [zlib.crc32(repr(key(record)).encode()) if self._rolls else 0 for record in records]
        try:
            outcomes = self._script.run(records, seeds, self.context.clock.now_ns)
        except ScriptError as error:
            raise self._invalid(error) from None
        return [_result(outcome) for outcome in outcomes]


def _result(outcome: Outcome) -> Result:
    if isinstance(outcome, ScriptRecordError):
        return Nack(outcome.code, outcome.message)
    return DROP if outcome is None else outcome

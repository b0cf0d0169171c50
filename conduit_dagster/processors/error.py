"""``error``: refuse records with a message."""

from __future__ import annotations

from typing import Final

from typing_extensions import override

from conduit_dagster.expressions import compile_template, reads_key
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, Template, failure
from conduit_dagster.sdk import Example, Nack, ProcessError, Processor, ProcessorContext, Record, Result

_CODE: Final = "processor.error"


class ErrorSettings(ConduitSettings):
    """Settings of ``error``."""

    message: Template = "error processor triggered"
    """What the nack says: a literal, or a Go template over the record."""


class Error(Processor):
    """Nack every record that reaches it.

    Without a ``condition`` on the processor, every record is nacked. If the message template fails on a record, the
    nack contains that failure.
    """

    name = "error"
    keeps_fields = True
    Settings = ErrorSettings
    shares_records = True
    settings: ErrorSettings
    examples = (
        Example("Every record", {"message": "bad id {{ .Payload.After.id }}"}, Record("1", {}, {"id": 1}), _CODE),
    )

    def __init__(self, settings: ErrorSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._message = compile_template(settings.message)

    @property
    @override
    def reads_key(self) -> bool:
        return reads_key(self._message.names)

    @override
    def process(self, record: Record) -> Record:
        raise ProcessError(self._text(record), code=_CODE)

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        if self._message.literal is not None:
            return [Nack(_CODE, self._message.literal)] * len(records)
        return super().process_block(records)

    def _text(self, record: Record) -> str:
        try:
            return str(self._message(record))
        except Exception as error:  # noqa: BLE001  # the record is nacked in any case
            return f"{self.settings.message!r} failed: {failure(error)}"

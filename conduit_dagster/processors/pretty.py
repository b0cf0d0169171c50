"""``pretty``: log each record, as Transporter's function does."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from pydantic import Field
from typing_extensions import override

from conduit_dagster.json_values import shallow
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.sdk import Example, ProcessorContext, ProcessorSettings, Record

_log = structlog.get_logger(__name__)


class PrettySettings(ProcessorSettings):
    """Settings of ``pretty``."""

    spaces: int = Field(default=2, ge=0, le=16)
    """How many spaces to indent by; 0 gives one line."""


class Pretty(InPlaceProcessor):
    """Log the payload of each record as JSON (level info), as Transporter's ``pretty``; the record passes unchanged.

    Values that the pipeline's file redacts are masked. A repeated step logs its records again. A record that
    can't be logged passes too.
    """

    name = "pretty"
    keyless = True
    keeps_fields = True
    Settings = PrettySettings
    settings: PrettySettings
    examples = (Example("Unchanged", {}, Record("1", {}, {"_id": 0}), Record("1", {}, {"_id": 0})),)

    def __init__(self, settings: PrettySettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._indent = settings.spaces or None

    @override
    def change(self, record: Record) -> None:
        with suppress(Exception):  # a record that can't be shown, or a log that can't be written, is not its fault
            _log.info(self._text(self.context.mask(record).after), node=self.context.node_id)

    def _text(self, value: Any) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        try:
            plain = msgspec.to_builtins(value)
            return json.dumps(plain, indent=self._indent, ensure_ascii=False)
        except RecursionError:
            return json.dumps(shallow(value), indent=self._indent, ensure_ascii=False)

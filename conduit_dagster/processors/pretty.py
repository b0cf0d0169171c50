"""``pretty``: log each record, as Transporter's function does."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec
import structlog
from pydantic import Field as Describe
from typing_extensions import override

from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.sdk import Example, ProcessorContext, ProcessorSettings, Record

_log = structlog.get_logger(__name__)


class PrettySettings(ProcessorSettings):
    """Settings of ``pretty``."""

    spaces: int = Describe(default=2, ge=0, le=16, description="How many spaces to indent by; 0 gives one line.")


class Pretty(InPlaceProcessor):
    """Log the payload of each record as JSON (level info), as Transporter's ``pretty``; the record passes unchanged.

    Values that the pipeline's file redacts are masked. A repeated step logs its records again.
    """

    name: ClassVar[str] = "pretty"
    keyless: ClassVar[bool] = True
    keeps_fields: ClassVar[bool] = True
    Settings: ClassVar[type[ProcessorSettings]] = PrettySettings
    settings: PrettySettings
    examples = (Example("Unchanged", {}, Record("1", {}, {"_id": 0}), Record("1", {}, {"_id": 0})),)

    def __init__(self, settings: PrettySettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._indent = settings.spaces or None

    @override
    def change(self, record: Record) -> None:
        shown: Any = self.context.mask(record).after
        text = shown.decode("utf-8", "replace") if isinstance(shown, bytes) else self._text(shown)
        _log.info(text, node=self.context.node_id)

    def _text(self, value: Any) -> str:
        return json.dumps(msgspec.to_builtins(value), indent=self._indent, ensure_ascii=False)

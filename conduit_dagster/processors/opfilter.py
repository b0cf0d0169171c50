"""``opfilter``: pass only some operations, as Transporter's function does."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import AfterValidator, model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.record import OPERATIONS
from conduit_dagster.sdk import DROP, Drop, Example, Processor, ProcessorContext, ProcessorSettings, Record

_WORDS: Final = {
    **{operation: frozenset({operation}) for operation in OPERATIONS},
    "insert": frozenset({"create", "snapshot"}),
}


def _operations(text: str) -> str:
    for name in comma_separated(text):
        if name.lower() not in _WORDS:
            raise refuse(f"there is no operation {name}", fix=f"one of {', '.join(_WORDS)}")
    return text


Operations = Annotated[str, AfterValidator(_operations)]


class OpfilterSettings(ProcessorSettings):
    """Settings of ``opfilter``: one of the two lists."""

    whitelist: Operations = ""
    """Only these pass, such as `insert,update`. `insert`, Transporter's word, is create and snapshot."""
    blacklist: Operations = ""
    """These go no further."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if not (self.whitelist or self.blacklist):
            raise refuse("neither whitelist nor blacklist is given", fix="give one of the two")
        return self


class Opfilter(Processor):
    """Pass records by their operation, as Transporter's ``opfilter``; the others are dropped and acked."""

    name = "opfilter"
    keeps_fields = True
    keyless = True
    Settings = OpfilterSettings
    settings: OpfilterSettings
    shares_records = True
    examples = (
        Example(
            "No deletes", {"blacklist": "delete"}, Record("1", {}, None, {"_id": 0}, None, "delete"), DROP
        ),
        Example(
            "Inserts", {"whitelist": "insert"}, Record("1", {}, {"_id": 0}), Record("1", {}, {"_id": 0})
        ),
    )  # fmt: skip

    def __init__(self, settings: OpfilterSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        white, black = (
            {operation for name in comma_separated(text) for operation in _WORDS[name.lower()]}
            for text in (settings.whitelist, settings.blacklist)
        )
        self._goes_on = (white or set(OPERATIONS)) - black

    @override
    def process(self, record: Record) -> Record | Drop:
        return record if record.operation in self._goes_on else DROP

"""``remap``: move records to another namespace, as Transporter's function does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from conduit_dagster.processors.common.in_place import InPlaceProcessor, MapSettings
from conduit_dagster.record import COLLECTION
from conduit_dagster.sdk import Example, ProcessorContext, Record


class RemapSettings(MapSettings):
    """Settings of ``remap``: ``ns_map.OLD: NEW`` for each namespace."""

    prefix: ClassVar[str] = "ns_map."
    open_keys: ClassVar[tuple[str, ...]] = ("ns_map.*",)


class Remap(InPlaceProcessor):
    """Change the namespace of records (the metadata ``opencdc.collection``), as Transporter's ``remap``.

    Records of namespaces that are not listed stay unchanged.
    """

    name = "remap"
    keeps_fields = True
    keyless = True
    Settings = RemapSettings
    settings: RemapSettings
    examples = (
        Example(
            "One namespace",
            {"ns_map.foo": "bar"},
            Record("1", {COLLECTION: "foo"}, {"_id": 0}),
            Record("1", {COLLECTION: "bar"}, {"_id": 0}),
        ),
    )

    def __init__(self, settings: RemapSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._names = settings.names
        self.loop = self._loop

    @override
    def change(self, record: Record) -> None:
        found = self._names.get(record.collection)
        if found is not None:
            record.metadata = {**record.metadata, COLLECTION: found}

    def _loop(self, rest: Iterator[Any]) -> None:
        names, last, changed = self._names, None, None
        for record in rest:
            # records that shared their metadata still share it
            if record.metadata is not last:
                last = changed = record.metadata
                found = names.get(last.get(COLLECTION, ""))
                if found is not None:
                    changed = {**last, COLLECTION: found}
            record.metadata = changed

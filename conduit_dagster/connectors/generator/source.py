"""The ``generator`` source: synthetic records at any rate, identical whenever a range is read again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import Duration
from conduit_dagster.record import COLLECTION, OPERATIONS, Data, Record
from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.sdk import Block, ConnectorContext, ConnectorSettings, Limit, Position, ReadOptions, Source, Split

FIELD_TYPES = ("int", "string", "time", "bool", "duration")
_WORDS = """
    amber anchor basin beacon birch canyon cedar cobalt copper coral delta ember falcon fjord garnet
    glacier harbor hazel indigo island jasper juniper kestrel lagoon lantern maple marble meadow mesa
    nectar oasis onyx orchid otter pebble pepper pine prairie quartz raven reef ridge river saffron sage
    sierra silver spruce summit teal thistle timber topaz tundra valley velvet violet walnut willow
    winter wren yarrow zephyr zinc
""".split()  # noqa: SIM905  # a list of them would be a line each
_MASK = (1 << 64) - 1


class Collection(BaseModel):
    """Shape of the records of one collection."""

    model_config = ConfigDict(frozen=True)

    name: str
    format: Literal["raw", "structured", "file"]
    fields: dict[str, str] = {}
    path: str = ""
    operations: tuple[str, ...] = ("create",)


class GeneratorSettings(ConnectorSettings):
    """Generates records. Unlike Conduit's, it resumes: a restarted pipeline continues after the last acked record."""

    open_keys: ClassVar[tuple[str, ...]] = ("format.options.*", "collections.*")

    record_count: int = Field(0, alias="recordCount", ge=0)
    """Total number of records; 0 means unlimited."""
    rate: float = Field(0, ge=0)
    """Records per second; 0 means as fast as possible."""
    burst_sleep: Duration = Field(0.0, alias="burst.sleepTime")
    """Pause between bursts; 0 means no bursts."""
    burst_generate: Duration = Field(1.0, alias="burst.generateTime")
    """Duration of a burst."""
    format_type: Literal["", "raw", "structured", "file"] = Field("", alias="format.type")
    """Kind of payload: raw bytes (JSON text), a document, or the content of a file."""
    operations: str = "create"
    """Comma-separated operations to choose from: create, update, delete, snapshot."""
    seed: int = 0
    """Seed of the generated values."""

    @field_validator("burst_generate")
    @classmethod
    def _some_burst(cls, value: float) -> float:
        if value <= 0:
            raise refuse("a burst must last longer than 0s", fix="for example 1s")
        return value

    @model_validator(mode="after")
    def _check_collections(self) -> GeneratorSettings:
        self.collections()
        return self

    def collections(self) -> list[Collection]:
        """Return the default collection, if it has a format, and the named ones. Raises if there are none."""
        extra = {key: str(value) for key, value in (self.model_extra or {}).items()}
        own = {"format.type": self.format_type, "operations": self.operations}
        named = sorted({key.split(".")[1] for key in extra if fnmatch(key, "collections.*.*")})
        found = [_collection("", {**extra, **own})] if self.format_type else []
        for name in named:
            prefix = f"collections.{name}."
            found.append(
                _collection(name, {k.removeprefix(prefix): v for k, v in extra.items() if k.startswith(prefix)})
            )
        if not found:
            raise refuse("nothing to generate", fix="set format.type, or collections.NAME.format.type")
        return found


def _collection(name: str, settings: dict[str, str]) -> Collection:
    options = {k.removeprefix("format.options."): v for k, v in settings.items() if k.startswith("format.options.")}
    kind = settings.get("format.type", "")
    path = options.pop("path", "") if kind == "file" else ""
    operations = tuple(part.strip() for part in settings.get("operations", "create").split(","))
    _check_collection(name, kind, options, path, operations)
    return Collection(name=name, format=cast(Any, kind), fields=options, path=path, operations=operations)


def _check_collection(name: str, kind: str, fields: dict[str, str], path: str, operations: tuple[str, ...]) -> None:
    where = f"collection {name!r}" if name else "the default collection"
    if kind not in ("raw", "structured", "file"):
        raise refuse(f"{where} has no format.type", fix="raw, structured or file")
    if kind == "file" and not path:
        raise refuse(f"{where} has no file", fix="set format.options.path")
    if kind != "file" and not fields:
        raise refuse(f"{where} has no fields", fix="set format.options.NAME: int")
    for field, kind_of in fields.items():
        if kind != "file" and kind_of not in FIELD_TYPES:
            raise refuse(f"field {field!r} has type {kind_of!r}", fix=f"one of {', '.join(FIELD_TYPES)}")
    for operation in operations:
        if operation not in OPERATIONS:
            raise refuse(f"unknown operation {operation!r}", fix=f"some of {', '.join(OPERATIONS)}")


def mix(value: int) -> int:
    """Return the SplitMix64 hash of a number: 64 well-distributed bits, the same on every machine."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class GeneratorSource(Source):
    """Synthetic records. Record number n depends only on n, the seed and the step's clock; its position is n.

    Without ``recordCount`` it never ends; a run that drains its sources then takes the records due at its rate, or one
    batch.
    """

    name = "generator"
    Settings = GeneratorSettings
    settings: GeneratorSettings
    sets_metadata = True
    gives_json = True
    lag_unit = "records"

    def __init__(self, settings: GeneratorSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._started = time.monotonic()
        self._base: int | None = None
        self._drain_to: int | None = None

    def initial(self) -> Position:
        """Return the position before the first record."""
        return 0

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position up to which records are due, within the limit."""
        if self._base is None:
            self._base = start
        due = start + limit.records if not self.settings.rate else self._due(horizon is not None)
        if horizon is not None and not self.settings.record_count:
            self._drain_to = due = max(start, due) if self._drain_to is None else self._drain_to
        if self.settings.record_count:
            due = min(due, self.settings.record_count)
        return max(start, min(due, start + limit.records))

    def _due(self, draining: bool) -> int:
        """Return the position due at the rate since this run's start; draining to a known count ignores the rate."""
        assert self._base is not None
        if draining and self.settings.record_count:
            return self.settings.record_count
        return self._base + math.floor(self._active(time.monotonic() - self._started) * self.settings.rate)

    def _active(self, elapsed: float) -> float:
        burst, sleep = self.settings.burst_generate, self.settings.burst_sleep
        if not sleep:
            return elapsed
        cycles, rest = divmod(elapsed, burst + sleep)
        return cycles * burst + min(rest, burst)

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Split into equal parts."""
        size = max(1, math.ceil((end - start) / n))
        counts = [(first, min(size, end - first)) for first in range(start, end, size)]
        return [Split(first, first - start, count, count * 100, {"to": first + count}) for first, count in counts]

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the generated records."""
        make = self._maker()
        for first in range(split.start, split.detail["to"], options.block_records):
            records = [make(n) for n in range(first + 1, min(first + options.block_records, split.detail["to"]) + 1)]
            yield Block(records, lambda i, first=first: first + i + 1)

    def _maker(self) -> Callable[[int], Record]:
        makers = [self._record_maker(collection) for collection in self.settings.collections()]
        seed, only = mix(self.settings.seed), makers[0] if len(makers) == 1 else None

        def make(n: int) -> Record:
            number = mix(n ^ seed)
            return (only or makers[number % len(makers)])(n, number)

        return make

    def _record_maker(self, collection: Collection) -> Callable[[int, int], Record]:
        metadata = self.context.labels
        if collection.name:
            metadata[COLLECTION] = collection.name
        data, operations = self._data_maker(collection), collection.operations

        def make(n: int, number: int) -> Record:
            operation = operations[(number >> 32) % len(operations)]
            after = data(number) if operation != "delete" else None
            before = data(number ^ _MASK) if operation in ("update", "delete") else None
            return Record(n, metadata, after, _WORDS[number % len(_WORDS)].encode(), before, operation)

        return make

    def _data_maker(self, collection: Collection) -> Callable[[int], Data]:
        if collection.format == "file":
            content = self._content(collection.path)
            return lambda number: content
        structured = _document_maker(collection.fields, self.context.clock.now_ns)
        if collection.format == "structured":
            return structured
        return lambda number: msgspec.json.encode(structured(number))

    def _content(self, path: str) -> bytes:
        try:
            return Path(self.context.resolve(path)).read_bytes()
        except OSError as error:
            raise from_os_error(error, f"can't read {path}") from error

    def lag(self, position: Position) -> int | None:
        """Return the number of records left, 0 beyond a record count that was lowered; None if unlimited."""
        return max(0, self.settings.record_count - position) if self.settings.record_count else None


def _document_maker(fields: dict[str, str], now_ns: int) -> Callable[[int], dict[str, Any]]:
    makers = [(name, _FIELDS[kind], i) for i, (name, kind) in enumerate(fields.items())]

    def make(number: int) -> dict[str, Any]:
        return {name: field(mix(number + i), now_ns) for name, field, i in makers}

    return make


_FIELDS: dict[str, Callable[[int, int], Any]] = {
    "int": lambda number, now: number >> 1,
    "string": lambda number, now: _WORDS[number % len(_WORDS)],
    "time": lambda number, now: now,
    "bool": lambda number, now: bool(number & 1),
    "duration": lambda number, now: (number % 1000) * 1_000_000_000,
}

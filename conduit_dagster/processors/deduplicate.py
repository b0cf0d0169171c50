"""``deduplicate``: only the first record with a key goes on."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, ClassVar, Self, cast

import msgspec
from pydantic import Field as Describe
from pydantic import model_validator
from typing_extensions import override

from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.expressions import compile_expression
from conduit_dagster.processors.base import (
    DROP,
    Example,
    Nack,
    ProcessorContext,
    ProcessorSettings,
    Record,
    Result,
    Results,
)
from conduit_dagster.processors.remembering import KEY, OWNER, Entries, Remembering
from conduit_dagster.processors.settings import Expression, failure, refused

_encode = msgspec.json.Encoder(order="sorted").encode
_NS = 1_000_000_000


class DeduplicateSettings(ProcessorSettings):
    """Settings of ``deduplicate``: ``key`` and at least one window."""

    key: Expression = Describe(
        description="What must not come twice: a Python expression over the record, such as `after.id`, or "
        "`[after.id, operation]` for several values. A key that is null, or has a null in its list, is never a "
        "duplicate; a missing field is null."
    )
    records: int | None = Describe(
        default=None, ge=1, alias="window.records", description="For how many records a key is remembered."
    )
    time: PositiveDuration | None = Describe(
        default=None,
        alias="window.time",
        description="For how long a key is remembered, by the time of the steps: `1h`. With both, until the first of "
        "the two is over.",
    )

    @model_validator(mode="after")
    def _has_window(self) -> Self:
        if self.records is None and self.time is None:
            raise refused("value", "there is no window", "set window.records: 100000, or window.time: 24h")
        return self


class Deduplicate(Remembering):
    """Let on the first record with a key, and drop those that follow within a window. Drops are acked.

    The keys are kept with the steps, so that it holds over restarts and crashes: a record is a duplicate of one that
    went on from here, whatever became of that behind. A dead letter that is replayed, and the pieces of one record,
    are no duplicates of themselves. A rewound source is looked at anew, and with it those whose records shared its
    steps. A key that can't be computed is a nack. Put it before what replaces the metadata (`unwrap.opencdc`): records
    are told apart by their source, which is there, and their position.

    It stands among the processors of the pipeline or of a destination. The records of a pipeline with it pass one task,
    in order, with one step in flight. A remembered key takes some 40 bytes on disk
    and 200 in the task's memory, which holds those of two windows of records and of the block at hand.
    """

    name: ClassVar[str] = "deduplicate"
    Settings: ClassVar[type[ProcessorSettings]] = DeduplicateSettings
    settings: DeduplicateSettings
    shares_records: ClassVar[bool] = True
    examples = (
        Example(
            "The first one with its key",
            {"key": "after.id", "window.records": "1000"},
            Record("1", {}, {"id": 1}),
            Record("1", {}, {"id": 1}),
        ),
        Example(
            "Without a key it is no duplicate",
            {"key": "after.id", "window.time": "1h"},
            Record("1", {}, {"name": "a"}),
            Record("1", {}, {"name": "a"}),
        ),
    )

    def __init__(self, settings: DeduplicateSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._key: Callable[[Record], Any] = compile_expression(settings.key, context.clock)
        # of another expression no key is a known one
        salt = hashlib.blake2b(settings.key.encode(), digest_size=KEY).digest()
        self._salted = hashlib.blake2b(digest_size=KEY, key=salt)
        self._metadata: dict[str, str] | None = None
        self._named = hashlib.blake2b(digest_size=OWNER)
        self._time_ns = None if settings.time is None else int(settings.time * _NS)
        self.recall(0, Entries())

    @property
    @override
    def reads_key(self) -> bool:
        # positions name the records
        return True

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        results = Results(records)
        self._turn_over()
        young, old, kept, count = self._young, self._old, self._kept, self.count
        keys, owners, numbers, times, free = kept.keys, kept.owners, kept.numbers, kept.at_ns, self._gone + len(kept)
        value_of, salted, now_ns = self._key, self._salted, self.context.clock.now_ns
        for place, record in enumerate(records):
            try:
                value = value_of(record)
                if value is None or (isinstance(value, list | tuple) and None in value):
                    continue
                named = salted.copy()
                named.update(_encode(value))
            except Exception as error:  # noqa: BLE001  # an expression may raise whatever Python raises for such operands
                results.put(place, Nack("expression.failed", failure(error)))
                continue
            count += 1
            key, owner = named.digest(), self._owner(record)
            before = young.get(key)
            if before is None:
                before = old.get(key)
            if before is not None and not self._is_over(before, count):
                if kept.owner(before - self._gone) != owner:
                    results.put(place, DROP)
                continue
            young[key] = free
            free += 1
            keys += key
            owners += owner
            numbers.append(count)
            times.append(now_ns)
        self.count = count
        return results if results.special else cast(list[Result], records)

    def _owner(self, record: Record) -> bytes:
        # records of one source mostly share their metadata
        if record.metadata is not self._metadata:
            source, _, _ = self.context.record_key(record)
            self._metadata = record.metadata
            self._named = hashlib.blake2b(f"{source}\0".encode("utf-8", "backslashreplace"), digest_size=OWNER)
        named, position = self._named.copy(), record.position
        # a number stands for its text
        named.update(b"%d" % position if type(position) is int else str(position).encode("utf-8", "backslashreplace"))
        return named.digest()

    @property
    def remembered(self) -> int:
        """How many keys are in memory."""
        return len(self._kept)

    # -- its memory ---------------------------------------------------------------------------------------------

    def _turn_over(self) -> None:
        """Every so many records as are remembered, what was there the last time is over."""
        records = self.settings.records
        if records is None or self.count - self._turned <= records:
            return
        over = self._first_young - self._gone
        self._kept.forget(over)
        self._gone += over
        self._old, self._young = self._young, {}
        self._turned, self._first_young = self.count, self._gone + len(self._kept)

    @override
    def recall(self, count: int, entries: Entries) -> None:
        self.count = self._turned = count
        self._kept, self._gone, self._first_young = entries, 0, len(entries)
        self._first_new = len(entries)
        keys = bytes(entries.keys)
        # later ones of the same key come later
        self._old = {keys[i * KEY : (i + 1) * KEY]: i for i in range(len(entries))}
        self._young = {}

    @override
    def news(self) -> Entries:
        first = max(self._first_new - self._gone, 0)
        if self.settings.records is not None:
            # the count never falls: what is over by it will be for every step to come
            first = max(first, bisect_left(self._kept.numbers, self.count - self.settings.records))
        return self._kept.since(first)

    @override
    def settle(self) -> None:
        self._first_new = self._gone + len(self._kept)

    @override
    def entries(self) -> Entries:
        kept, lasting = self._kept, Entries()
        for place, (number, at_ns) in enumerate(zip(kept.numbers, kept.at_ns, strict=True)):
            if not self.is_over(number, at_ns):
                key = kept.keys[place * KEY : (place + 1) * KEY]
                lasting.extend(key, kept.owner(place), (number,), (at_ns,))
        return lasting

    @override
    def is_over(self, number: int, at_ns: int) -> bool:
        return self._is_past(number, at_ns, self.count)

    def _is_over(self, place: int, count: int) -> bool:
        place -= self._gone
        return self._is_past(self._kept.numbers[place], self._kept.at_ns[place], count)

    def _is_past(self, number: int, at_ns: int, count: int) -> bool:
        if self.settings.records is not None and count - number > self.settings.records:
            return True
        return self._time_ns is not None and self.context.clock.now_ns - at_ns >= self._time_ns

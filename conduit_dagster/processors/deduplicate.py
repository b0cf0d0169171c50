"""``deduplicate``: pass only the first record with a key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from hashlib import blake2b
from typing import Any, Final, Self, cast

import msgspec
from pydantic import Field, model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import PositiveDuration
from conduit_dagster.expressions import Compiled, EvaluationError, compile_expression, reads_key
from conduit_dagster.json_values import is_json
from conduit_dagster.processors.common.setting_kinds import Expression, failure
from conduit_dagster.recovery.classify import lack_of_memory
from conduit_dagster.sdk import DROP, Example, Nack, ProcessorContext, ProcessorSettings, Record, Result, Results
from conduit_dagster.sdk.processor import Entries, Key, StatefulProcessor

_encode = msgspec.json.Encoder(order="sorted").encode
_NS: Final = 1_000_000_000
_LEAST: Final = -(2**63)
_MOST: Final = 2**63
_DIGITS: Final = len(str(_MOST))
_SHORT: Final = 32
"""Length up to which a text takes no more space than its hash, in characters."""
_DIGEST: Final = 16


class DeduplicateSettings(ProcessorSettings):
    """Settings of ``deduplicate``: ``key`` and at least one window."""

    key: Expression
    """What must not occur twice: a Python expression over the record, such as `after.id`, or `[after.id, operation]`
    for several values. A key that is null, or has a null in its list, is never a duplicate; a missing field is null.
    """
    records: int | None = Field(None, ge=1, alias="window.records")
    """For how many records with a key a key is remembered."""
    time: PositiveDuration | None = Field(None, alias="window.time")
    """For how long a key is remembered, by the time of the steps: `1h`. With both, until the first of the two is over.
    """

    @model_validator(mode="after")
    def _has_window(self) -> Self:
        if self.records is None and self.time is None:
            raise refuse("there is no window", fix="set window.records: 100000, or window.time: 24h")
        return self


class Deduplicate(StatefulProcessor):
    """Pass the first record with a key, and drop those that follow within a window. Dropped records are acked.

    The keys are stored with the steps, so deduplication survives restarts and crashes: a record is a duplicate of any
    record that passed here, whatever happened to that one later. A dead letter that had already passed bypasses it when
    replayed, and the pieces of one record are not duplicates of one another. All keys are discarded when a source is
    rewound or its settings make it another source. A record whose key can't be computed is nacked. Records are told
    apart by their source and position, which no processor changes.

    It may be a processor of the pipeline or of a destination. All records of such a pipeline pass through one task, in
    order, with one step in flight. A stored key takes up to 40 bytes on disk and 200 in the task's memory, which holds
    the keys of two windows and of the current block.
    """

    name = "deduplicate"
    keeps_fields = True
    Settings = DeduplicateSettings
    settings: DeduplicateSettings
    shares_records = True
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
        self._value: Compiled = compile_expression(settings.key, context.clock)
        self._time_ns = None if settings.time is None else int(settings.time * _NS)
        self.recall(0, Entries())

    @property
    @override
    def reads_key(self) -> bool:
        return reads_key(self._value.names)

    @property
    @override
    def reads_position(self) -> bool:
        # the position identifies the record
        return True

    @property
    @override
    def basis(self) -> str:
        return self.settings.key

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        results = Results(records)
        self._turn_over()
        young, old, kept, count, now_ns = self._young, self._old, self._kept, self.count, self.context.clock.now_ns
        keys, owners, numbers, times = kept.keys, kept.owners, kept.numbers, kept.at_ns
        value_of, forgotten, metadata, source = self._value, self._forgotten, None, 0
        for place, record in enumerate(records):
            try:
                key = value_of(record)
                kind = type(key)
                # most keys need no hash
                plain = _LEAST < key < _MOST if kind is int else kind is str and len(key) <= _SHORT and key.isascii()
                if not plain:
                    if key is None or (isinstance(key, list | tuple) and None in key):
                        continue
                    key = _digest(key)
            except Exception as error:  # an expression may raise any Python error
                if lack_of_memory(error) is not None:
                    raise
                results.put(place, Nack("expression.failed", failure(error)))
                continue
            # most records of one source share their metadata
            if record.metadata is not metadata:
                metadata, source = record.metadata, self._source_of(record)
            position = record.position
            owner = source ^ (
                position if type(position) is int and 0 <= position < _MOST else _number_of(str(position))
            )
            count += 1
            before = young.get(key) or old.get(key)  # numbers begin at 1
            if before and before > forgotten:
                self.count, at = count, bisect_left(numbers, before)
                if not self.is_over(before, times[at]):
                    if owners[at] != owner:
                        results.put(place, DROP)
                    continue
            young[key] = count
            keys.append(key)
            owners.append(owner)
            numbers.append(count)
            times.append(now_ns)
        self.count = count
        return results if results.special else cast(list[Result], records)

    def _source_of(self, record: Record) -> int:
        source, _, _ = self.context.record_key(record)
        return _number_of(f"{source}\0")

    # -- memory -------------------------------------------------------------------------------------------------

    def _turn_over(self) -> None:
        """Drop the old keys and make the young ones old, once no key from before the last turnover matters any more."""
        records = self.settings.records
        gone = self._forgotten if records is None else max(self._forgotten, self.count - records - 1)
        if self._turned <= gone:
            self.forget(gone)
            self._old, self._young, self._turned = self._young, {}, self.count

    @override
    def forget(self, number: int) -> None:
        self._kept.forget(bisect_right(self._kept.numbers, number))
        self._forgotten = number

    @override
    def recall(self, count: int, entries: Entries) -> None:
        self.count = self._turned = self._settled = count
        self._forgotten = 0
        self._kept, self._young = entries, dict[Key, int]()
        # later entries with the same key come later in the list, and win
        self._old = dict(zip(entries.keys, entries.numbers, strict=True))

    @override
    def news(self) -> Entries:
        return self._kept.since(max(bisect_right(self._kept.numbers, self._settled), self._first_within()))

    @override
    def settle(self) -> None:
        self._settled = self.count

    @override
    def entries(self) -> Entries:
        kept, first = self._kept, self._first_within()
        while first < len(kept) and self.is_over(kept.numbers[first], kept.at_ns[first]):
            first += 1
        if first:
            self.forget(kept.numbers[first - 1])
        return kept.since(0)

    def _first_within(self) -> int:
        """Return the index of the first entry not over by count; the count never falls, so this holds for all steps."""
        if self.settings.records is None:
            return 0
        return bisect_left(self._kept.numbers, self.count - self.settings.records)

    @override
    def is_over(self, number: int, at_ns: int) -> bool:
        if self.settings.records is not None and self.count - number > self.settings.records:
            return True
        # a clock that was once far ahead must not keep keys until that time
        return self._time_ns is not None and abs(self.context.clock.now_ns - at_ns) >= self._time_ns


def _digest(key: Any) -> bytes:
    """Return the hash of a key's JSON. Raises for values that JSON can't hold: different ones could look the same."""
    if not is_json(key):
        raise EvaluationError("a part of the key can't be represented in JSON")
    text = b"\0" + key if isinstance(key, bytes) else _encode(key)
    return blake2b(text, digest_size=_DIGEST).digest()


def _number_of(text: str) -> int:
    """Return the number that a decimal text denotes if it fits into 63 bits, otherwise a 63-bit hash of the text."""
    if len(text) <= _DIGITS and text.isdecimal() and str(int(text)) == text and int(text) < _MOST:
        return int(text)
    return int.from_bytes(blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()) >> 1

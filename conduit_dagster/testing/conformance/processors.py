"""Conformance suite of processors, and its edge-case records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
import pytest

from conduit_dagster.config.field_docstrings import field_docstrings
from conduit_dagster.engine.nodes import Node
from conduit_dagster.engine.plugin_results import set_up
from conduit_dagster.expressions import Clock
from conduit_dagster.record import COLLECTION, OPERATIONS, Data, Nack, Record, copy
from conduit_dagster.sdk import Processor, ProcessorContext
from conduit_dagster.sdk.processor import StatefulProcessor

_DEPTH: Final = 100


def odd_records() -> list[Record]:
    """Return edge-case records: all operations, missing and raw parts, deep documents, numbers beyond 64 bits."""
    deep: dict[str, Any] = {"id": 1}
    for _ in range(_DEPTH):
        deep = {"in": deep}
    names = {"a.b": 1, "with space": 2, 'quo"te': 3, "é": 4, "": 5, "$x": 6}
    values = {"big": 2**70, "small": -(2**70), "nan": float("nan"), "inf": float("inf"), "none": None, "yes": True}
    payloads: list[Data] = [
        None, {}, {"id": 1, "name": "a"}, {"id": None, "name": None}, {"id": "1", "name": 2}, {"id": [1, {"x": None}]},
        names, values, deep, {"name": "\0\ud7ff\U0001f600\n\t\\"}, {"name": "x" * 5_000},
        b"", b"raw", b"\xff\xfe\x00", b'{"id": 1}', b"[1, 2]", b"null", b"{", b"NaN",
    ]  # fmt: skip
    records = [Record(str(place), {"m": "x"}, payload) for place, payload in enumerate(payloads)]
    records += [Record(f"o{o}", {}, {"id": 1}, {"id": 1}, {"id": 0}, o) for o in OPERATIONS]
    records += [
        Record("delete", {COLLECTION: "users"}, None, {"id": 1}, {"id": 1, "name": "a"}, "delete"),
        Record("raw key", {}, {"id": 1}, b"\xff"),
        Record("only before", {}, None, None, b"raw", "update"),
        Record("", {"": "", "é": "\n"}, {"id": 1}),
    ]
    return records


_NODE = "p:x"
_MISTAKES: Final = frozenset(
    {"processor.result_type", "processor.result_count", "processor.result_order"}
    | {"record.invalid", "record.not_json", "record.operation"}
)
"""Codes of nacks by which the engine tells that a result is none: the processor's mistake, not the record's."""


class Processed:
    """Results of a block, as the engine sees them."""

    def __init__(self, processor: Processor, records: Sequence[Record]) -> None:
        self._nacks: dict[int, Nack] = {}
        self._dropped: set[int] = set()
        given = [copy(record) for record in records]
        self.records, origins = Node(_NODE, processor).run(given, range(len(given)), self)
        self.origins = list(origins)

    def filtered(self, node: str, origin: int) -> None:
        """Register a drop, as the engine does."""
        del node
        self._dropped.add(origin)

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        """Register a nack, as the engine does."""
        del node, record
        self._nacks[origin] = nack

    @property
    def gone(self) -> list[int]:
        """Places of records that do not continue."""
        return [*self._nacks, *self._dropped]

    @property
    def mistakes(self) -> dict[int, Nack]:
        """Nacks by place that the engine gave for results that are none."""
        return {place: nack for place, nack in self._nacks.items() if nack.code in _MISTAKES}

    def without_names(self, origin: int) -> str:
        """Return the outcome of one record, without key and position, for comparison."""
        on = [
            (record.operation, record.metadata, record.after, record.before)
            for record, place in zip(self.records, self.origins, strict=True)
            if place == origin
        ]
        return repr((on, self._nacks.get(origin), origin in self._dropped))

    def of(self, origin: int) -> str:
        """Return the outcome of one record, for comparison."""
        on = [record for record, place in zip(self.records, self.origins, strict=True) if place == origin]
        return repr((on, self._nacks.get(origin), origin in self._dropped))


_OTHER: Final[dict[type, Any]] = {
    str: "changed", int: 987, float: 9.5, bool: None, type(None): 5, list: ["changed"], dict: {"changed": 1},
}  # fmt: skip


def check_made_of(processor: Processor, record: Record) -> int:
    """Change each field that another one does not depend on, and assert that this one stays; return the count.

    Proves nothing for a record without a document, a nacked one, or a processor without ``made_of``.
    """
    others = sorted(_fields(record))
    # one block: a processor may need a second for each
    before, *afters = _documents_after(processor, [record, *(_with_other(record, other) for other in others)])
    compared = 0
    for field, value in (before or {}).items():
        made = processor.made_of(field)
        for other, after in zip(others, afters, strict=True):
            if made is not None and other not in made:
                assert after is None or repr(after.get(field)) == repr(value), f"{field} is made of {other} too"
                compared += 1
    return compared


def _fields(record: Record) -> Mapping[str, Any]:
    return record.after if isinstance(record.after, dict) else {}


def _documents_after(processor: Processor, records: Sequence[Record]) -> list[Mapping[str, Any] | None]:
    results = processor.process_block(list(map(copy, records)))
    return [
        result.after if isinstance(result, Record) and isinstance(result.after, dict) else None for result in results
    ]


def _with_other(record: Record, field: str) -> Record:
    made = copy(record)
    assert isinstance(made.after, dict)
    made.after[field] = _OTHER.get(type(made.after[field]), "changed")
    return made


class ProcessorConformance:
    """Derive ``class TestMine(ProcessorConformance)`` with ``processor``, and ``settings`` as in a pipeline file.

    ``records``: typical input; by default, the records of its examples.
    """

    processor: ClassVar[type[Processor]]
    settings: ClassVar[Mapping[str, str]] = {}
    records: ClassVar[Sequence[Record]] = ()

    @pytest.fixture
    def kind(self) -> type[Processor]:
        """Return the class under test."""
        return self.processor

    @pytest.fixture
    def made_with(self) -> Mapping[str, str]:
        """Return the settings."""
        return self.settings

    @pytest.fixture
    def make(self, kind: type[Processor], made_with: Mapping[str, str]) -> Any:
        """Create a new instance."""
        return lambda: make_processor(kind, made_with)

    @pytest.fixture
    def given(self, kind: type[Processor]) -> list[Record]:
        """Return typical records, with edge cases around them."""
        own = [copy(record) for record in (*self.records, *(example.given for example in kind.examples))]
        odd = odd_records()
        return [*odd[: len(odd) // 2], *own, *odd[len(odd) // 2 :], *own]

    def test_it_says_what_it_is(self, kind: type[Processor]) -> None:
        """The class has everything that ``processors describe`` shows."""
        assert kind.name and kind.__doc__, "it has a name and a docstring"
        written, fields = field_docstrings(kind.Settings, {}), kind.Settings.model_fields
        lacking = [name for name, field in fields.items() if not field.description and name not in written]
        assert not lacking, f"settings without a description: {lacking}"

    def test_its_examples_are_true(self, kind: type[Processor]) -> None:
        """Every example gives its documented result."""
        for example in kind.examples:
            [result] = make_processor(kind, example.settings).process_block([copy(example.given)])
            got = result.code if isinstance(result, Nack) else result
            assert got == example.gives, f"the example {example.title}"

    def test_whatever_it_is_given_is_a_result_or_a_nack(self, make: Any, given: list[Record]) -> None:
        """Edge-case records are nacked individually, and never fail the step."""
        results = make().process_block([copy(record) for record in given])
        assert len(results) == len(given), "a result for each record"
        passed = Processed(make(), given)
        assert {*passed.origins, *passed.gone} == set(range(len(given))), "each goes on, is dropped or is nacked"
        for place, nack in passed.mistakes.items():
            assert not _is_json(given[place]), f"{given[place]}: {nack.message}"

    def test_what_goes_on_can_be_delivered(self, make: Any, given: list[Record]) -> None:
        """Records that could be delivered before can be delivered afterwards."""
        passed = Processed(make(), given)
        for record, origin in zip(passed.records, passed.origins, strict=True):
            assert record.operation in OPERATIONS
            assert all(isinstance(k, str) and isinstance(v, str) for k, v in record.metadata.items())
            if _is_json(given[origin]):
                assert _is_json(record), f"{given[origin]} became {record}"

    def test_a_field_is_made_of_what_it_tells(self, make: Any, given: list[Record]) -> None:
        """A field does not depend on fields that ``made_of`` leaves out."""
        for record in given:
            check_made_of(make(), record)

    def test_what_it_does_not_read_may_be_left_out(self, make: Any, given: list[Record]) -> None:
        """Sources leave out keys and positions that no processor reads."""
        processor = make()
        if processor.reads_key:
            pytest.skip("it reads keys and positions")
        less = [copy(record) for record in given]
        for record in less:
            record.key = None
            if not processor.reads_position:
                record.position = 0
        whole, found = Processed(make(), given), Processed(make(), less)
        for place in range(len(given)):
            assert whole.without_names(place) == found.without_names(place), "it reads keys, or positions"

    def test_a_record_does_not_depend_on_its_neighbours(
        self, kind: type[Processor], make: Any, given: list[Record]
    ) -> None:
        """A result does not depend on the size of the block: a repeated step may divide it differently."""
        if not kind.deterministic or issubclass(kind, StatefulProcessor):
            pytest.skip("it says that it does")
        block = Processed(make(), given)
        alone = make()
        # in reverse, which exposes a processor that counts its records
        for place, record in reversed(list(enumerate(given))):
            one = Processed(alone, [record])
            assert one.of(0) == block.of(place), f"{record} alone, and in a block"

    def test_it_repeats_itself(self, kind: type[Processor], make: Any, given: list[Record]) -> None:
        """A deterministic processor gives the same result again, as when lost staging is rebuilt in another process."""
        if not kind.deterministic:
            pytest.skip("it says that it does not")
        first, again = Processed(make(), given), Processed(make(), given)
        for place in range(len(given)):
            assert first.of(place) == again.of(place)

    def test_it_leaves_metadata_that_records_share_alone(self, make: Any, given: list[Record]) -> None:
        """Metadata shared by records of a split is not changed in place."""
        shared = {"m": "x"}
        records = [copy(record) for record in given]
        for record in records:
            record.metadata = shared
        processor = make()
        if not processor.shares_records:
            pytest.skip("the engine gives each record metadata of its own")
        processor.process_block(records)
        assert shared == {"m": "x"}


def make_processor(kind: type[Processor], settings: Mapping[str, str]) -> Processor:
    """Create a processor as a task does: from serialised settings."""
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(kind.travelling(settings, ".")))
    return set_up(kind, travelled, ProcessorContext("p", _NODE, Clock(0)))


def _is_json(record: Record) -> bool:
    try:
        return all(_same(part) for part in (record.after, record.before, record.key))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return False


def _same(part: Any) -> bool:
    return isinstance(part, bytes) or repr(msgspec.json.decode(msgspec.json.encode(part))) == repr(part)

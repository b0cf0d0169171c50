"""Processors in one loop give the same result as one after the other, on random chains and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from processors.conftest import make

from conduit_dagster.engine import fused_node
from conduit_dagster.engine.fused_node import FusedNode, fused
from conduit_dagster.engine.nodes import FilterNode, Node, Step, selects_of
from conduit_dagster.expressions import Clock, compile_condition
from conduit_dagster.lazy_records import PayloadIds, Payloads, as_list
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.processors.omit import Omit
from conduit_dagster.record import OPERATIONS, Nack, Record, copy
from conduit_dagster.sdk import Processor, ProcessorContext, ProcessorSettings, Result

AFTER = ".Payload.After"
NAMES = st.sampled_from("abc")
ODD_NAMES = NAMES | st.sampled_from(["a.b", "é", "", "x y", "payload"])
TEXTS = st.sampled_from(
    [
        *("", "x", "é", "aGk=", "7", '{"a":1}', "\ud800", "0.5", "true", "\u2028", "\x00", "\n", " 1", "-0", "1e400"),
        *("NaN", "null", "[1]", '{"a":1,"a":{"b":2}}', '"\\ud83d"', "aGk", "aGk=\n", "/w==", "9223372036854775808"),
        *("2024-01-02T03:04:05Z", "9" * 5000),
    ]
)
NUMBERS = st.integers(-9, 9) | st.sampled_from([2**70, 2**53 + 1, 10**4299, 1e21, -0.0]) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(ODD_NAMES, SCALARS, max_size=2)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "before": VALUES,
        "after": VALUES,
        "source": VALUES,
        "ts_ms": SCALARS,
        "transaction": SCALARS,
        "op": st.sampled_from(["c", "u", "d", "$unset", "x", 1, None, []]),
    },
)
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "payload": CHANGES | VALUES,
        "operation": st.sampled_from(["create", "delete", "x", None, []]),
        "metadata": st.dictionaries(ODD_NAMES, TEXTS, max_size=2) | VALUES,
        "key": VALUES,
    },
)
DOCUMENTS = st.dictionaries(ODD_NAMES, VALUES, max_size=3) | ENVELOPES
PAYLOADS = (
    DOCUMENTS
    | st.none()
    | st.sampled_from(
        [
            b"",
            b"no JSON",
            b"[1]",
            b'{"a": 1, "b": "x"}',
            b'{"a": 1.5, "c": null}',
            b'{"b": {"a": [2]}}',
            b"null",
            b'"t"',
            *(b"\xff", b'{"a":"\xff"}', b'\xef\xbb\xbf{"a":1}', b'{"a":"\\ud83d"}', b'{"a":"\n"}', b'{"a":NaN}', b"\r"),
            *(b'{"a":1e400}', b'{"a":1,"a":{"b":2}}', b'{"a":' * 1200, b'{"a":' + b"9" * 5000 + b"}"),
        ]
    )
)
EXPRESSIONS = st.sampled_from(
    [
        *("after.a", "after.a * 100", "after.a + after['b']", "len(after.b)", "str(after.c) + 'x'", "'abc' * 3"),
        *("1 / 0", "[after.a, after.b]", "{'x': after.c}", "after", "regex('^x', after.b)", "after.a.b", "now()"),
        *("float('nan')", "[x for x in after.b]", "operation + after.b", "after.b.upper()", "sorted(after.b)"),
        *("(1, after.a)", "after.a if after.b else 2", "after.a / 3", "-after.a", "after.a.b.c", "hash(after.b)"),
        *("after.a[1:]", "after.b[::-1]", "after.b[after.a:]", "after[1:]", "after.b[0]"),
    ]
)
CONDITIONS = st.sampled_from(
    [
        *("after.a > 0", "after.b", "'a' in after", "after.a == 1 or after.b == 'x'", "metadata.m == '1'"),
        *("not after.c", "{{ eq .Payload.After.a 1 }}", "len(after.b) > 1", "after.b[:1] == 'x'"),
        *("after.a < after.b", "after.a in after.b", "after", "before.a", "key", "{{ .Payload.After.a }}"),
    ]
)


def of(*choices: st.SearchStrategy[tuple[str, dict[str, str]]]) -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    return st.one_of(*choices)


def on(plugin: str, **more: str) -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    fields = ODD_NAMES.map(lambda name: f'{AFTER}["{name}"]') | st.just(AFTER)
    return fields.map(lambda field: (plugin, {"field": field, **more}))


PROCESSORS = of(
    on("json.decode"),
    on("json.encode"),
    on("base64.encode"),
    on("base64.decode"),
    on("split"),
    *(on(f"unwrap.{kind}") for kind in ("debezium", "kafkaconnect", "opencdc")),
    *(on("field.convert", type=kind) for kind in ("string", "int", "float", "bool", "time")),
    st.tuples(NAMES, EXPRESSIONS).map(lambda two: ("field.set", {"field": f"{AFTER}.{two[0]}", "expression": two[1]})),
    st.tuples(NAMES, st.sampled_from(["text", "{{ .Payload.After.a }}!", "{{ .Operation }}"])).map(
        lambda two: ("field.set", {"field": f"{AFTER}.{two[0]}", "value": two[1]})
    ),
    st.tuples(NAMES, NAMES).map(lambda two: ("field.rename", {"mapping": f"{AFTER}.{two[0]}:{two[1]}"})),
    st.just(("field.rename", {"mapping": f"{AFTER}.a:x,{AFTER}.b:y"})),
    NAMES.map(lambda name: ("field.exclude", {"fields": f"{AFTER}.{name},{AFTER}.x"})),
    NAMES.map(lambda name: ("omit", {"fields": f"{name},b"})),
    NAMES.map(lambda name: ("pick", {"fields": f"{name},b"})),
    st.sampled_from(["evolve", "discard_row", "discard_value"]).map(
        lambda columns: ("schema", {"fields": "a:integer?, b:string", "columns": columns})
    ),
    st.sampled_from([".Metadata.x", ".Key.a", ".Payload.Before", ".Operation", f"{AFTER}.a.b"]).map(
        lambda field: ("field.set", {"field": field, "value": "{{ .Payload.After.a }}"})
    ),
    st.just(("skip", {"field": "a", "operator": ">", "match": "1"})),
    st.just(("clone", {"count": "1"})),
    st.just(("filter", {})),
    st.just(("remap", {"ns_map.a": "b"})),
)
SUBJECTS = st.tuples(PROCESSORS, st.just("") | CONDITIONS)
KEYS = ENVELOPES | st.sampled_from([None, b"", b"k", b'{"payload": 1}', b'{"payload": {"a": null}}', b"\xff", b"null"])
RECORDS = st.builds(
    Record,
    st.sampled_from(["1", 2, ""]),
    st.sampled_from([{}, {"m": "1"}, {"opencdc.collection": "a", "": ""}]),
    PAYLOADS,
    KEYS,
    PAYLOADS,
    st.sampled_from(OPERATIONS),
)


class Fates:
    """What happened to the records that did not continue, in any order."""

    def __init__(self) -> None:
        self.filters: list[tuple[str, int]] = []
        self.nacks: list[tuple[str, int, Nack, Record]] = []

    def filtered(self, node: str, origin: int) -> None:
        self.filters.append((node, origin))

    def nacked(self, node: str, origin: int, nack: Nack, record: Record) -> None:
        self.nacks.append((node, origin, nack, copy(record)))

    def sorted(self) -> tuple[Any, Any]:
        # nodes take turns in another order
        return sorted(self.filters), sorted(self.nacks, key=lambda nack: nack[1])


def steps_of(subjects: Sequence[tuple[tuple[str, dict[str, str]], str]], gate: str) -> list[Step]:
    clock = Clock(1)
    gates: list[Step] = [FilterNode("p:gate", compile_condition(gate, clock))] if gate else []
    nodes = [
        Node(f"p:{i}", make(plugin, settings), selects_of("", condition, clock))
        for i, ((plugin, settings), condition) in enumerate(subjects)
    ]
    return [*gates, *nodes]


def run(steps: Sequence[Step | FusedNode], records: list[Record], fates: Fates, first: int = 0) -> list[Any]:
    """The resulting records, with their origins."""
    origins: Sequence[int] = range(first, first + len(records))
    for step in steps:
        if records:
            records, origins = step.run(records, origins, fates)
    return list(zip(as_list(records), origins, strict=True))


def lazy(payloads: list[Any]) -> list[Record]:
    ids = PayloadIds([str(i) for i in range(len(payloads))], [b"%d" % i for i in range(len(payloads))])
    return cast("list[Record]", Payloads(payloads, Record(0, {"m": "1"}), ids))


def copies(payloads: list[Any]) -> list[Record]:
    return [copy(record) for record in lazy(payloads)]


@settings(max_examples=250)
@given(
    st.lists(SUBJECTS, min_size=1, max_size=4),
    st.just("") | CONDITIONS,
    st.lists(PAYLOADS, max_size=6),
    st.sampled_from([1, 2, 64]),
)
def test_one_loop_gives_what_the_nodes_give(
    subjects: list[tuple[tuple[str, dict[str, str]], str]], gate: str, payloads: list[Any], enough: int
) -> None:
    """Also if the nodes take over because most records fit no code."""
    # a processor handles a single record without generated code
    fates, expected = Fates(), list[Any]()
    for place, record in enumerate(copies(payloads)):
        expected += run(steps_of(subjects, gate), [record], fates, place)
    for records in (copies(payloads), lazy([record.after for record in copies(payloads)])):
        found = Fates()
        with patch.object(fused_node, "_ENOUGH", enough):
            # as text: 1, 1.0 and True are equal, and NaN is not equal to itself
            assert repr(run(fused(tuple(steps_of(subjects, gate))), records, found)) == repr(expected)
        assert repr(found.sorted()) == repr(fates.sorted())


@settings(max_examples=150)
@given(st.lists(SUBJECTS, min_size=1, max_size=4), st.lists(RECORDS, max_size=6))
def test_one_loop_gives_what_the_nodes_give_for_any_record(
    subjects: list[tuple[tuple[str, dict[str, str]], str]], records: list[Record]
) -> None:
    """Records with keys, payloads before, operations and metadata of their own."""
    fates, expected, found = Fates(), list[Any](), Fates()
    for place, record in enumerate(map(copy, records)):
        expected += run(steps_of(subjects, ""), [record], fates, place)
    assert repr(run(fused(tuple(steps_of(subjects, ""))), list(map(copy, records)), found)) == repr(expected)
    assert repr(found.sorted()) == repr(fates.sorted())


def test_every_run_of_nodes_with_code_is_one_loop() -> None:
    fast = [(("json.decode", {"field": AFTER}), ""), (("omit", {"fields": "a"}), "after.b")]
    subjects = [*fast, (("remap", {"ns_map.a": "b"}), ""), (("filter", {}), "after.c")]
    steps = fused(tuple(steps_of(subjects, "after.a == 1")))
    assert [type(step) for step in steps] == [FusedNode, Node, FusedNode]


def test_payloads_stay_payloads() -> None:
    steps = fused(tuple(steps_of([(("json.decode", {"field": AFTER}), ""), (("filter", {}), "after.a == 2")], "")))
    fates, lines = Fates(), [b'{"a": 1}', b'{"a": 2}', b"x", b'{"a": 3}']
    records, origins = steps[0].run(lazy(lines), range(4), fates)
    assert isinstance(records, Payloads) and records.payloads == [{"a": 1}, {"a": 3}]
    assert records.ids == PayloadIds(["0", "3"], [b"0", b"3"]) and list(origins) == [0, 3]
    assert fates.filters == [("p:1", 1)]
    ((node, origin, _, nacked),) = fates.nacks
    assert (node, origin, nacked.position, nacked.key, nacked.after) == ("p:0", 2, "2", b"2", b"x")


class Replacing(Processor):
    """Its code fits numbers; for the rest it makes a new record."""

    name = "replacing"
    shares_records = True
    payload_code = PayloadCode("after = after + one", {"one": 1})

    def process(self, record: Record) -> Record:
        return Record(record.position, record.metadata, {"text": str(record.after)}, record.key)


class Silent(Omit):
    """A user's class that does something else than the built-in processor that it derives from."""

    def process_block(self, records: list[Record]) -> list[Result]:
        return list(records)


def test_a_new_record_takes_the_place_of_one_that_did_not_fit() -> None:
    node = Node("p:x", Replacing(ProcessorSettings(), ProcessorContext("p", "p:x", Clock())))
    for records in (copies([1, b"x", 3]), lazy([1, b"x", 3])):
        found = run(fused((node, node)), records, Fates())
        # the second time the document does not fit either
        assert [record.after for record, _ in found] == [3, {"text": "{'text': \"b'x'\"}"}, 5]


def test_a_derived_class_has_no_code_that_it_does_not_give_itself() -> None:
    silent = Silent(Silent.Settings.model_validate({"fields": "a"}), ProcessorContext("p", "p:x", Clock()))
    assert silent.payload_code is not None
    ((record, _),) = run(fused((Node("p:x", silent),)), lazy([{"a": 1}]), Fates())
    assert record.after == {"a": 1}

"""Cases for each built-in processor, with the same work as statements of a hand-written loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROCESSOR = "processor-"
"""Prefix of the names of these measures."""
_AFTER = ".Payload.After"
_DECODE: dict[str, Any] = {"id": "decode", "plugin": "json.decode", "settings": {"field": _AFTER}}
MODULE = """
def cents(record):
    record.after["cents"] = record.after["amount"] * 100
    return record


def cents_of_block(records):
    for record in records:
        record.after["cents"] = record.after["amount"] * 100
    return records
"""
"""``transforms.py`` of the project."""
LOOP = """
from base64 import b64decode, b64encode

import msgspec

from conduit_dagster.sdk import DROP, Nack, Processor
from conduit_dagster.record import Record, copy

KNOWN = {"id", "name", "age", "city", "amount"}
decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
seen = {}


class Loop(Processor):
    name = "loop"
    shares_records = True

    def process_block(self, records):
        results = []
        for record in records:
            try:
                doc = decode(record.after)
            except msgspec.DecodeError as error:
                results.append(Nack("json", str(error)))
                continue
@
            record.after = doc
            results.append(record)
        return results
"""
"""``plugins/loop.py`` of the project: hand-written code for just this work. ``@`` is the work."""
IN_ORDER = """
from conduit_dagster.sdk.processor import Entries, Remembering


class InOrder(Remembering, Loop):
    name = "in-order"
    basis = ""

    def recall(self, count, entries):
        pass

    def news(self):
        return Entries()

    def settle(self):
        pass

    def entries(self):
        return Entries()

    def is_over(self, number, at_ns):
        return False

    def forget(self, number):
        pass
"""
"""Appended for a loop that must see all records in order: it runs in one task, and stores nothing."""


@dataclass(frozen=True)
class Case:
    """One processor, after ``json.decode``."""

    name: str
    settings: Mapping[str, str]
    loop: str = ""
    """Statements of the hand-written loop on ``doc``; it may ``continue``. Empty: no loop, and the alternative is the
    pipeline without the processor.
    """
    wrapper: str = ""
    """Wrapper of each line of the input; ``@`` is the line."""
    select: str = ""
    """The same SELECT in a plain Spark job, which reads, selects and writes: a third side."""
    per_record: float = 1
    """Output records per input record."""
    before: Sequence[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """Processors in between."""
    in_order: bool = False
    """Whether the loop must see all records in order, in one task, like the processor."""

    @property
    def plugin(self) -> str:
        """The plugin's name, without the suffix that distinguishes several cases."""
        return self.name.partition(" ")[0]

    @property
    def processors(self) -> list[Mapping[str, Any]]:
        """The processors as in a pipeline file."""
        return [_DECODE, *self.before, {"id": "it", "plugin": self.plugin, "settings": dict(self.settings)}]


def _encoded(name: str) -> Mapping[str, Any]:
    return {"id": "before", "plugin": "base64.encode", "settings": {"field": f"{_AFTER}.{name}"}}


_AVRO = {
    "id": "before",
    "plugin": "avro.encode",
    "settings": {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "s"},
}
_BASE64 = 'doc["name"] = b64encode(doc["name"].encode()).decode()'
CASES = (
    Case("json.decode", {"field": f"{_AFTER}.none"}, "pass"),
    Case("json.encode", {"field": _AFTER}, "doc = encode(doc)"),
    Case("field.set", {"field": f"{_AFTER}.kind", "value": "x"}, 'doc["kind"] = "x"'),
    Case(
        "field.set expression",
        {"field": f"{_AFTER}.cents", "expression": "after.amount * 100"},
        'doc["cents"] = doc["amount"] * 100',
    ),
    Case(
        "field.set template",
        {"field": f"{_AFTER}.label", "value": "{{ .Payload.After.name }}-{{ .Payload.After.age }}"},
        "doc[\"label\"] = f\"{doc['name']}-{doc['age']}\"",
    ),
    Case("field.rename", {"mapping": f"{_AFTER}.name:fullname"}, 'doc["fullname"] = doc.pop("name")'),
    Case("field.exclude", {"fields": f"{_AFTER}.note"}, 'doc.pop("note", None)'),
    Case("field.convert", {"field": f"{_AFTER}.age", "type": "string"}, 'doc["age"] = str(doc["age"])'),
    Case("filter", {}, "if doc['id'] < 0:\n    results.append(DROP)\n    continue"),
    Case(
        "clone",
        {"count": "1"},
        "record.after = doc\nmeta = record.metadata\nrecord.metadata = {**meta, 'clone.index': '0'}\n"
        "other = Record(record.position, {**meta, 'clone.index': '1'}, dict(doc), record.key)\n"
        "results.append([record, other])\ncontinue",
        per_record=2,
    ),
    Case(
        "split",
        {"field": f"{_AFTER}.tags"},
        "tags, meta, one = doc.pop('tags'), record.metadata, []\nrecord.after = doc\n"
        "for i, tag in enumerate(tags):\n    piece = copy(record)\n    piece.after['tags'] = tag\n"
        "    piece.metadata = {**meta, 'split.index': str(i)}\n    one.append(piece)\nresults.append(one)\ncontinue",
        '{"id": 1, "tags": ["a", "b"], "doc": @}',
        per_record=2,
    ),
    Case("base64.encode", {"field": f"{_AFTER}.name"}, _BASE64),
    Case(
        "base64.decode",
        {"field": f"{_AFTER}.name"},
        f'{_BASE64}\ndoc["name"] = b64decode(doc["name"]).decode()',
        before=[_encoded("name")],
    ),
    Case("omit", {"fields": "note,age"}, 'doc.pop("note", None); doc.pop("age", None)'),
    Case("pick", {"fields": "id,name"}, 'doc = {k: doc[k] for k in ("id", "name") if k in doc}'),
    Case("rename", {"field_map.name": "fullname"}, 'doc["fullname"] = doc.pop("name")'),
    Case(
        "skip",
        {"field": "age", "operator": ">=", "match": "0"},
        'if not doc["age"] >= 0:\n    results.append(DROP)\n    continue',
    ),
    Case("opfilter", {"blacklist": "delete"}, "pass"),
    Case("remap", {"ns_map.a": "b"}, "pass"),
    Case(
        "schema",
        {"fields": "id:integer, name:string, age:integer, city:string?, amount:number", "columns": "discard_value"},
        "if (type(doc['id']) is not int or type(doc['name']) is not str or type(doc['age']) is not int\n"
        "        or type(doc.get('city', '')) is not str or type(doc['amount']) not in (int, float)):\n"
        "    results.append(Nack('type', 'wrong'))\n    continue\n"
        "doc = {k: v for k, v in doc.items() if k in KNOWN}",
    ),
    Case(
        "deduplicate",
        {"key": "after.id", "window.records": "100000"},
        "self.count += 1\nbefore = seen.get(doc['id'])\nif before is not None and self.count - before <= 100000:\n"
        "    results.append(DROP)\n    continue\nseen[doc['id']] = self.count",
        in_order=True,
    ),
    Case(
        "unwrap.kafkaconnect",
        {},
        "doc = doc['payload']\nrecord.operation, record.before = 'create', None\nkey = decode(record.key)\n"
        "if isinstance(key, dict):\n    record.key = key.get('payload', key)",
        '{"payload": @, "schema": {}}',
    ),
    Case(
        "unwrap.debezium",
        {},
        "change = doc['payload']\nrecord.operation = {'c': 'create', 'u': 'update'}[change['op']]\n"
        "read_at = str(change['ts_ms'] * 1_000_000)\n"
        "record.metadata = {**record.metadata, 'opencdc.readAt': read_at, **change['source']}\n"
        "record.before, doc = change['before'], change['after']\nkey = decode(record.key)\n"
        "if isinstance(key, dict):\n    record.key = key.get('payload', key)",
        '{"payload": {"before": null, "after": @, "source": {"table": "t"}, "op": "c", "ts_ms": 1674061777225}}',
    ),
    Case(
        "unwrap.opencdc",
        {},
        "record.operation, record.metadata, payload = doc['operation'], doc['metadata'], doc['payload']\n"
        "record.key, record.before, doc = b64decode(doc['key']), payload['before'], payload['after']",
        '{"operation": "create", "metadata": {"m": "x"}, "key": "MQ==", "payload": {"before": null, "after": @}}',
    ),
    Case("python per record", {"function": "transforms:cents"}),
    Case("python per block", {"function": "transforms:cents_of_block", "per": "block"}),
    Case(
        "custom.javascript",
        {"script": "function process(r) { r.Payload.After.cents = r.Payload.After.amount * 100; return r; }"},
    ),
    Case("avro.decode", {}, before=[_AVRO]),
    Case(
        "sql",
        {
            "columns": "amount DOUBLE, city STRING",
            "query": "SELECT *, amount * 100 AS cents, upper(city) AS town FROM record WHERE amount >= 0",
        },
        'if not doc["amount"] >= 0:\n    results.append(DROP)\n    continue\n'
        'doc["cents"], doc["town"] = doc["amount"] * 100, doc["city"].upper()',
        select="SELECT *, amount * 100 AS cents, upper(city) AS town FROM record WHERE amount >= 0",
    ),
)

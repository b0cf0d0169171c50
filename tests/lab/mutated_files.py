"""Pipeline files with random mistakes: example pipelines as trees, changed in a few places."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from ruamel.yaml import YAML

from conduit_dagster.builtin_plugins import PROCESSORS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
TEMPLATE = {"sdk.record.format": "template", "sdk.record.format.options": "{{ toJson .Payload.After }}"}
CONNECTORS: list[dict[str, Any]] = [
    {"type": "source", "plugin": "file", "settings": {"path": "./in/*.jsonl", "on-gone": "skip", "rotate-wait": "1s"}},
    {"type": "source", "plugin": "generator", "settings": {"recordCount": "5", "format.options.n": "int"}},
    {"type": "source", "plugin": "parquet", "settings": {"path": "./in.parquet", "keys": "id,name"}},
    {"type": "source", "plugin": "spark:rate", "settings": {"path": "x", "read": "stream", "option.a": "1"}},
    {"type": "source", "plugin": "pipeline", "settings": {"pipeline": "other"}},
    {"type": "destination", "plugin": "file", "settings": {"path": "./out/", **TEMPLATE}},
    {"type": "destination", "plugin": "log", "settings": {"level": "warn", "message": "x"}},
    {"type": "destination", "plugin": "postgres", "settings": {"url": "postgresql://u:p@h/d", "table": "s.t"}},
    {"type": "destination", "plugin": "parquet", "settings": {"path": "./rows", "columns": "a: long, b: string"}},
    {"type": "destination", "plugin": "delta", "settings": {"path": "./table", "app-id": "me"}},
    {"type": "destination", "plugin": "spark:json", "settings": {"path": "./json", "mode": "append"}},
]
"""A connector of each plugin."""
WHOLE: dict[str, Any] = {
    "status": "running",
    "description": "what for",
    "delivery": {"strategy": "at-least-once", "batch-size": 10, "batch-bytes": "1MB", "log": "auto", "drift": False},
    "recovery": {"min-delay": "1s", "max-delay": "2m", "backoff-factor": 2, "max-retries": 3},
    "trigger": {"every": "5m"},
    "fan-in": "merge",
    "dead-letter-queue": {"plugin": "file", "settings": {"path": "./dead"}, "window-size": 5, "open-limit": 3},
    "redact": [".Payload.After.ssn"],
    "tests": [{"name": "t", "records": [{"after": {"n": 1}}], "expect": {"destinations": {"out": []}}}],
}
DEEP: Any = json.loads("[" * 60 + "]" * 60)
ODD: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, 1e300, float("nan"), [], {}, [None], [[]], {"": ""}, {"id": []}, DEEP, {"a": DEEP},
    "", " ", "\0", "a\0b", "\ud800", "\udce9", "\ufeff", "\u202e", "\u2028", "\r", "\x1b[31m", "é" * 300, "a" * 300,
    "a/" * 3000, "a" * 70_000, "9" * 5000, "-1", "0", "1h", "-1h", "99999999999999h", "1e999", "nan", "99999999999MB",
    "s3://b/k", "nope://x", "://", "x://\0", "file://", "file:///", "/", "..", "./", "~", "*", "[", "/dev/null",
    "${NOT_SET}", "${", "$", "$$", "{{ .Payload.After.x }}", "{{", "{{ .", "}}", "after.x[", "(" * 300, "[" * 300,
    "not " * 500 + "x", "a.b" * 500, ".Payload.After" + ".a" * 500, "__class__", "lambda: 0", "(x{1,1000}){1,1000}",
    "builtin:", "@", "builtin:@", "builtin:file@", "spark:", "spark:\0", ":", "-", "file", "log", "pipeline", "sql",
    "* * * * *", "0 0 30 2 *", "@yearly", "99 * * * *", "SELECT", "SELECT 1 FROM x;", "a BIGINT,", "'; DROP TABLE x --",
]  # fmt: skip
"""Values that are valid nowhere."""

Path_ = tuple[Any, ...]


@cache
def seeds() -> list[Any]:
    """Return documents to start from: examples of this project and of Conduit, and one for every plugin."""
    files = [*ROOT.glob("pipelines/*.yaml"), *ROOT.glob("conduit_dagster/cli/templates/*.yaml")]
    files += sorted(GOLDEN.glob("*/pipeline.yaml"))
    texts = [file.read_text() for file in files]
    return [YAML(typ="safe", pure=True).load(text) for text in texts if "connectors" in text] + [*_of_plugins()]


def _of_plugins() -> list[Any]:
    sources = [one for one in CONNECTORS if one["type"] == "source"]
    destinations = [one for one in CONNECTORS if one["type"] == "destination"]
    connectors = [{"id": f"c{i}", **one} for i, one in enumerate(CONNECTORS)]
    made = [[source, destinations[i % len(destinations)]] for i, source in enumerate(sources)]
    made += [[sources[0], destination] for destination in destinations]
    pipelines = [{"connectors": [{"id": f"c{i}", **one} for i, one in enumerate(pair)]} for pair in made]
    pipelines += [{"connectors": connectors, **WHOLE}]
    pipelines += [{"connectors": connectors[:1] + connectors[5:6], "processors": one} for one in _processors()]
    other = {"id": "other", "delivery": {"log": "records"}, "connectors": connectors[:1] + connectors[6:7]}
    return [{"version": "2.2", "pipelines": [{"id": f"p{i}", **one}, other]} for i, one in enumerate(pipelines)]


def _processors() -> list[Any]:
    """Return for every processor a list of one, with the settings of its first example."""
    found: list[Any] = []
    for name, kind in PROCESSORS.all().items():
        settings = dict(kind.examples[0].settings) if kind.examples else {}
        found.append([{"id": "one", "plugin": name, "condition": "after.n > 0", "workers": 2, "settings": settings}])
    return found


def _places(tree: Any, at: Path_ = ()) -> list[Path_]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        inner = list(tree.items())
    elif isinstance(tree, list):
        inner = list(enumerate(tree))
    below = [place for key, value in inner for place in _places(value, (*at, key))] if len(at) < 20 else []
    return [*([at] if at else []), *below]


def _get(tree: Any, place: Path_) -> Any:
    for key in place:
        tree = tree[key]
    return tree


@cache
def _pool() -> list[Any]:
    """Return every value of every seed, to replace other values with."""
    return [_get(seed, place) for seed in seeds() for place in _places(seed)]


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """Draw a document with one to four changes."""
    tree = copy.deepcopy(draw(st.sampled_from(seeds())))
    for _ in range(draw(st.integers(1, 4))):
        places = _places(tree)
        if places:
            _change(draw, tree, draw(st.sampled_from(places)))
    return tree


def _change(draw: st.DrawFn, tree: Any, place: Path_) -> None:
    holder, key = _get(tree, place[:-1]), place[-1]
    value = draw(st.one_of(st.sampled_from(ODD), st.sampled_from(_pool()), st.text(max_size=20)))
    match draw(st.sampled_from(("replace", "replace", "replace", "delete", "repeat", "rename", "append"))):
        case "delete":
            del holder[key]
        case "repeat" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "rename" if isinstance(holder, dict):
            holder[value if isinstance(value, str) else "x"] = holder.pop(key)
        case "append" if isinstance(holder[key], str):
            holder[key] += value if isinstance(value, str) else "x"
        case "append" if isinstance(holder[key], list):
            holder[key].append(copy.deepcopy(value))
        case _:
            holder[key] = copy.deepcopy(value)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a file: mostly well-formed YAML, sometimes with a flaw of the text itself."""
    text = json.dumps(draw(trees()), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, 1))))
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at, piece = draw(st.integers(0, len(data))), draw(st.sampled_from(_PIECES))
        data = data[:at] + piece + data[at + draw(st.integers(0, 5)) :]
    return data


_PIECES = (
    b"", b"\0", b"\xff", b"[" * 5000, b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"!!binary ", b"\n---\n",
    b"\t", b"...", b"%YAML 3.0\n", b"? ", b"\r\n", b"#", b"{", b"}", b'"', b"\xed\xa0\x80", b"!!int ", b"!!timestamp ",
)  # fmt: skip

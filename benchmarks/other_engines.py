"""Other engines as processes: recognising a binary, its configuration for the same work, and parsing of its output.

The work: read JSON lines of a file, decode, set a field derived from two others, rename one, drop one, write a file;
invalid lines go to a separate file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.data import sound_line

CONDUIT, BENTHOS, VECTOR = "Conduit", "Benthos", "Vector"
OUTPUT = "out.jsonl"
"""The destination, in the run's folder."""
_DEAD = "dead.jsonl"
_AFTER = ".Payload.After"
_VERSIONS = {
    VECTOR: re.compile(r"^vector (\S+)"),
    BENTHOS: re.compile(r"^Version: (\S+)", re.MULTILINE),
    # a number and a platform, without a name
    CONDUIT: re.compile(r"^(v\S+|\d\S+|\(devel\)) \w+/\w+$"),
}
_PROCESSORS: list[dict[str, Any]] = [
    {"id": "decode", "plugin": "json.decode", "settings": {"field": _AFTER}},
    {
        "id": "label",
        "plugin": "field.set",
        "settings": {"field": f"{_AFTER}.label", "value": f"{{{{ {_AFTER}.name }}}} of {{{{ {_AFTER}.city }}}}"},
    },
    {"id": "rename", "plugin": "field.rename", "settings": {"mapping": f"{_AFTER}.name:fullname"}},
    {"id": "drop", "plugin": "field.exclude", "settings": {"fields": f"{_AFTER}.note"}},
]
_BLOBLANG = """
let r = content().parse_json()
root = $r.without("name", "note")
root.fullname = $r.name
root.label = $r.name + " of " + $r.city
"""
_VRL = """
. = object!(parse_json!(string!(.message)))
.fullname = del(.name)
.label = string!(.fullname) + " of " + string!(.city)
del(.note)
"""


@dataclass(frozen=True)
class Engine:
    """A way to run the work as a process."""

    name: str
    version: str
    command: Sequence[str]
    """Run in a folder prepared by :attr:`write`."""
    write: Callable[[Path, Path], None]
    """Write the engine's configuration into a folder, for an input file."""
    ends: bool
    """Whether it ends at the end of its input; others run until stopped."""
    opencdc: bool
    """Whether its lines are OpenCDC records, or just documents."""


def expected(i: int) -> dict[str, Any]:
    """Return the document that the work derives from line ``i``."""
    document = json.loads(sound_line(i))
    name = document.pop("name")
    del document["note"]
    return {**document, "fullname": name, "label": f"{name} of {document['city']}"}


def document_of(engine: Engine, line: bytes) -> dict[str, Any]:
    """Return the document in one line of the destination. Raises ``ValueError`` for an incorrect record."""
    found = json.loads(line)
    if not engine.opencdc:
        return found
    if found["operation"] != "create" or not found["position"]:
        raise ValueError(f"not a created record with a position: {line!r}")
    return found["payload"]["after"]


def ours(beside: Engine) -> Engine:
    """Return this engine; beside Conduit with the same pipeline file, beside others with the same line format."""
    command = [sys.executable, "-m", "conduit_dagster.cli.main", "run", "--once"]
    settings = {} if beside.opencdc else {"sdk.record.format": "payload/json"}
    return Engine("ours", "", command, partial(_pipeline, settings=settings), ends=True, opencdc=beside.opencdc)


def recognise(binary: str) -> Engine:
    """Return the engine of ``binary``, recognised by its version output. Exits for an unknown one."""
    path = str(Path(binary).resolve())
    said = [_said(path, argument) for argument in ("--version", "version")]
    for text in said:
        for kind, pattern in _VERSIONS.items():
            if found := pattern.search(text):
                return _engine(kind, found[1], path)
    raise SystemExit(f"{binary} is none of {', '.join(_VERSIONS)}: its version is {said[0]!r}")


def _said(path: str, argument: str) -> str:
    try:
        done = subprocess.run(
            [path, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"{path} {argument}: {error}") from error
    return done.stdout.strip()


def _engine(kind: str, version: str, path: str) -> Engine:
    if kind == CONDUIT:
        # its default ports may be taken
        command = [path, "run", "--api.enabled=false", "--pipelines.path", "./pipelines"]
        return Engine(kind, version, command, partial(_pipeline, settings={}), ends=False, opencdc=True)
    if kind == BENTHOS:
        return Engine(kind, version, [path, "-c", "benthos.yaml"], _benthos, ends=True, opencdc=False)
    return Engine(kind, version, [path, "--config", "vector.yaml"], _vector, ends=False, opencdc=False)


def _pipeline(root: Path, source: Path, settings: dict[str, str]) -> None:
    """Write one file for Conduit and for this engine, with nothing that only one of them supports."""
    into = {"path": f"./{OUTPUT}", **settings}
    pipeline = {
        "id": "bench",
        "status": "running",
        "connectors": [
            {"id": "in", "type": "source", "plugin": "builtin:file", "settings": {"path": str(source)}},
            {"id": "out", "type": "destination", "plugin": "builtin:file", "settings": into},
        ],
        "processors": _PROCESSORS,
        "dead-letter-queue": {"plugin": "builtin:file", "settings": {"path": f"./{_DEAD}"}, "window-size": 0},
    }
    (root / "pipelines").mkdir()
    _dump(root / "pipelines" / "bench.yaml", {"version": "2.2", "pipelines": [pipeline]})


def _benthos(root: Path, source: Path) -> None:
    outputs = [
        {"check": "errored()", "output": {"file": {"path": f"./{_DEAD}", "codec": "lines"}}},
        {"output": {"file": {"path": f"./{OUTPUT}", "codec": "lines"}}},
    ]
    document = {
        "http": {"enabled": False},
        "logger": {"level": "FATAL"},
        "input": {"file": {"paths": [str(source)], "scanner": {"lines": {}}}},
        "pipeline": {"threads": -1, "processors": [{"mapping": _BLOBLANG}]},
        "output": {"switch": {"cases": outputs}},
    }
    _dump(root / "benthos.yaml", document)


def _vector(root: Path, source: Path) -> None:
    (root / "data").mkdir()
    remap = {"type": "remap", "inputs": ["in"], "drop_on_error": True, "reroute_dropped": True, "source": _VRL}
    document = {
        "data_dir": str(root / "data"),
        "sources": {"in": {"type": "file", "include": [str(source)], "read_from": "beginning"}},
        "transforms": {"work": remap},
        "sinks": {
            "out": _sink(root / OUTPUT, {"codec": "json"}, "work"),
            "dead": _sink(root / _DEAD, {"codec": "text"}, "work.dropped"),
        },
    }
    _dump(root / "vector.yaml", document)


def _sink(path: Path, encoding: dict[str, str], of: str) -> dict[str, Any]:
    return {"type": "file", "inputs": [of], "path": str(path), "encoding": encoding}


def _dump(path: Path, document: dict[str, Any]) -> None:
    with path.open("w") as file:
        YAML().dump(document, file)

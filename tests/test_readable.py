"""Records as shown to people."""

from __future__ import annotations

import json

import msgspec

from conduit_dagster.readable import readable_line
from conduit_dagster.record import Data, Record, envelope


def _shown(key: Data, after: Data) -> tuple[object, object]:
    line = json.loads(readable_line(msgspec.to_builtins(envelope(Record("7", {}, after, key)))))
    assert line["position"] == "7"
    return line["key"], line["payload"]["after"]


def test_raw_data_is_text_where_it_is_text() -> None:
    assert _shown(b"k", b'{"n": 1}') == ("k", '{"n": 1}')
    assert _shown(None, b"") == (None, "")
    assert _shown({"id": "MQ=="}, {"n": "MQ=="}) == ({"id": "MQ=="}, {"n": "MQ=="})
    assert _shown(b"\xff", "höher".encode()) == ("/w==", "höher")

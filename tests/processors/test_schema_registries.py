"""Schema registries behind ``avro.encode`` and ``avro.decode``: logins, outages, and many that register at once."""

from __future__ import annotations

import base64
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lab.schema_registry_server import RegistryServer
from lab.waiting import at_once
from processors.avro_runs import AUTO, WIRE, decode, encode
from processors.conftest import make

from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.schemas.schema_registry import FolderRegistry


def test_of_many_that_meet_a_new_schema_at_once_all_have_one_number(tmp_path: Path) -> None:
    found: list[tuple[int, int]] = []

    def meet(_: int) -> None:
        for kind in range(20):
            schema = FolderRegistry(str(tmp_path)).register("s", json.dumps({"type": "string", "n": kind}))
            found.append((kind, schema.id))

    at_once(meet, 8)
    registry = FolderRegistry(str(tmp_path))
    assert len(found) == 160 and len(set(found)) == 20
    assert all(json.loads(registry.by_id(number).text)["n"] == kind for kind, number in found)
    assert not list(tmp_path.rglob(".*"))


def test_the_registry_is_asked_once_and_let_in_by_its_login(registry_server: RegistryServer) -> None:
    subject = make("avro.encode", {**AUTO, "url": registry_server.url("user:secret@")})
    subject.process_block([Record(str(i), {}, {"a": i}) for i in range(5)])
    assert registry_server.seen == [("/subjects/orders/versions", "Basic " + base64.b64encode(b"user:secret").decode())]
    encode(Record("1", {}, {"a": 1}), registry_server.url(), **{"auth.basic.username": "u", "auth.basic.password": "p"})
    assert registry_server.seen[1][1] == "Basic " + base64.b64encode(b"u:p").decode()


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (503, TransientError, "schemas.unreachable"),
        (401, FatalError, "schemas.refused"),
        (409, FatalError, "schemas.refused"),
    ],
)
def test_a_registry_that_fails_is_no_records_fault(
    registry_server: RegistryServer, status: int, kind: Any, code: str
) -> None:
    registry_server.answer = status
    with pytest.raises(kind) as error:
        encode(Record("1", {}, {"a": 1}), registry_server.url("user:secret@"))
    assert error.value.code == code and "secret" not in f"{error.value} {error.value.place}"


def test_a_login_may_hold_any_character(registry_server: RegistryServer) -> None:
    encode(Record("1", {}, {"a": 1}), registry_server.url("us%40er:s%2F%C5%82@"))
    encode(
        Record("1", {}, {"a": 1}),
        registry_server.url(),
        **{"auth.basic.username": "us@er", "auth.basic.password": "s/ł"},
    )
    assert {login for _, login in registry_server.seen} == {"Basic " + base64.b64encode("us@er:s/ł".encode()).decode()}


PAGES = (b"<html>Sorry</html>", b"", b"[]", b'{"ok": true}')
NO_ROUTE = b'{"error_code": 404, "message": "HTTP 404 Not Found"}'


@pytest.mark.parametrize("ask", [encode, decode])
@pytest.mark.parametrize(
    ("status", "page"),
    [*product((200, 400, 404, 408, 429, 500, 502), PAGES), (404, NO_ROUTE), (500, NO_ROUTE), (200, b"\xff")],
)
def test_the_page_of_a_proxy_is_an_outage(registry_server: RegistryServer, ask: Any, status: int, page: bytes) -> None:
    registry_server.answer, registry_server.page = status, page
    after = {"a": 1} if ask is encode else WIRE + b"\x02x"
    with pytest.raises(TransientError) as error:
        ask(Record("1", {}, after), registry_server.url())
    assert error.value.code == "schemas.unreachable" and str(status) in error.value.message


def test_a_folder_that_is_none_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file")
    with pytest.raises(TransientError, match="registry"):
        encode(Record("1", {}, {"a": 1}), str(tmp_path / "s"))

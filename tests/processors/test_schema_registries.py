"""Schema registries behind ``avro.encode`` and ``avro.decode``: logins, outages, and many that register at once."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import time
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab.certificates import Authority
from lab.schema_registry_server import RegistryServer
from lab.waiting import at_once, wait_until
from processors.avro_runs import AUTO, FIRST, WIRE, decode, encode, one
from processors.conftest import make

from conduit_dagster.processors.avro_encode import AvroEncode
from conduit_dagster.record import Nack, Record
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
        (403, FatalError, "schemas.refused"),
    ],
)
def test_a_registry_that_fails_is_no_records_fault(
    registry_server: RegistryServer, status: int, kind: Any, code: str
) -> None:
    registry_server.answer = status
    with pytest.raises(kind) as error:
        encode(Record("1", {}, {"a": 1}), registry_server.url("user:secret@"))
    assert error.value.code == code and "secret" not in f"{error.value} {error.value.place}"


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_asks_for_a_long_pause_is_an_outage(registry_server: RegistryServer, status: int) -> None:
    """The task would wait for an hour or two, without a word."""
    registry_server.answer, registry_server.headers = status, {"Retry-After": "3600"}
    begun = time.monotonic()
    with pytest.raises(TransientError) as error:
        decode(Record("1", {}, WIRE + b"\x02"), registry_server.url())
    assert error.value.code == "schemas.unreachable" and str(status) in error.value.message
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("status", [409, 422])
def test_a_schema_that_the_registry_does_not_take_is_its_records_fault(
    registry_server: RegistryServer, status: int
) -> None:
    """Those of other records it may take."""
    processor = make("avro.encode", {**AUTO, "url": registry_server.url()})
    [first] = processor.process_block([Record("1", {}, {"a": 1})])
    registry_server.answer = status
    known, new = processor.process_block([Record("2", {}, {"a": 2}), Record("3", {}, {"a": "text"})])
    assert isinstance(first, Record) and isinstance(known, Record)
    assert isinstance(new, Nack) and new.code == "avro.refused_schema" and str(status) in new.message


@pytest.mark.parametrize(
    ("name", "settings", "record"),
    [
        ("avro.decode", {}, Record("1", {}, WIRE + b"\x02")),
        ("avro.encode", FIRST, Record("1", {}, {"a": 1})),
    ],
)
def test_a_schema_that_is_not_there_is_not_asked_for_with_each_record(
    registry_server: RegistryServer, name: str, settings: dict[str, str], record: Record
) -> None:
    """A request for each of a block's records would take minutes. Later it is asked for again."""
    processor = make(name, {**settings, "url": registry_server.url()})
    found = processor.process_block([msgspec.structs.replace(record) for _ in range(1_000)])
    assert {one.code for one in found if isinstance(one, Nack)} == {"avro.unknown_schema"} and len(found) == 1_000
    assert len(registry_server.seen) < 100
    fields = [{"name": "a", "type": "int"}]
    registry_server.kept.register("example", json.dumps({"type": "record", "name": "r", "fields": fields}))
    wait_until(lambda: isinstance(processor.process_block([msgspec.structs.replace(record)])[0], Record), "it is known")


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


@pytest.fixture
def project(tmp_path: Path, registry_server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with certificates for a registry that takes TLS and wants a client's certificate."""
    authority = Authority(tmp_path, "authority")
    issued = {name: authority.issue(name, "IP:127.0.0.1") for name in ("server", "client")}
    folder = tmp_path / "project"
    (folder / "certs").mkdir(parents=True)
    (folder / "certs" / "ca.pem").write_text(authority.certificate)
    (folder / "certs" / "client.pem").write_text(issued["client"].chain)
    (folder / "certs" / "client.key").write_text(issued["client"].key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(issued["server"].write(tmp_path / "server.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    registry_server.socket = context.wrap_socket(registry_server.socket, server_side=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


CERTIFICATES = {
    "tls.ca.cert": "./certs/ca.pem",
    "tls.client.cert": "./certs/client.pem",
    "tls.client.key": "./certs/client.key",
}


def over_tls(server: RegistryServer, project: Path, **more: str) -> Any:
    """The result for a record, in a worker whose folder is not the project's."""
    url = server.url().replace("http", "https")
    settings = AvroEncode.travelling({**AUTO, "url": url, **CERTIFICATES, **more}, str(project))
    [result] = make("avro.encode", settings).process_block([Record("1", {}, {"a": 1})])
    return result


def test_the_files_of_certificates_start_at_the_project(registry_server: RegistryServer, project: Path) -> None:
    assert isinstance(over_tls(registry_server, project), Record)


@pytest.mark.parametrize("setting", CERTIFICATES)
def test_a_missing_certificate_is_named(registry_server: RegistryServer, project: Path, setting: str) -> None:
    with pytest.raises(FatalError, match=r"none\.pem can't be used: No such file") as error:
        over_tls(registry_server, project, **{setting: "certs/none.pem"})
    assert (error.value.code, error.value.place) == ("schemas.certificate", str(project / "certs/none.pem"))


def test_a_file_that_is_no_certificate_is_named(registry_server: RegistryServer, project: Path) -> None:
    (project / "certs" / "empty.pem").write_text("")
    for setting in ("tls.ca.cert", "tls.client.cert"):
        with pytest.raises(FatalError, match=r"empty\.pem can't be used") as error:
            over_tls(registry_server, project, **{setting: "certs/empty.pem"})
        assert error.value.code == "schemas.certificate"


def test_a_key_with_a_password_is_refused_and_not_asked_for(registry_server: RegistryServer, project: Path) -> None:
    key = project / "certs" / "client.key"
    subprocess.run(["openssl", "ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", key], check=True)
    with pytest.raises(FatalError, match=r"client\.pem can't be used"):
        over_tls(registry_server, project)


def test_a_registry_out_of_reach_is_told_by_the_cause() -> None:
    with pytest.raises(TransientError, match="Connection refused"):
        encode(Record("1", {}, {"a": 1}), "http://127.0.0.1:1")


def test_a_schema_that_refers_to_others_is_asked_for_whole(registry_server: RegistryServer) -> None:
    """Registries keep apart what is registered apart; with ``format=resolved`` they put it together."""
    home = {"type": "record", "name": "Home", "fields": [{"name": "city", "type": "string"}]}
    named, whole = (
        {"type": "record", "name": "Person", "fields": [{"name": "home", "type": kind}]} for kind in ("Home", home)
    )
    references = [{"name": "Home", "subject": "home", "version": 1}]
    registry_server.pages = {
        "/schemas/ids/7": {"schema": json.dumps(named), "references": references},
        "/schemas/ids/7?format=resolved": {"schema": json.dumps(whole), "references": references},
        "/subjects/example/versions/1": {"id": 7, "schema": json.dumps(named), "references": references},
    }
    record = Record("1", {}, {"home": {"city": "Split"}})
    encoded = one("avro.encode", record, {**FIRST, "url": registry_server.url()})
    assert isinstance(encoded, Record), encoded
    assert encoded.after == b"\0\0\0\0\x07\x0aSplit"
    decoded = decode(Record("1", {}, encoded.after), registry_server.url())
    assert isinstance(decoded, Record) and decoded.after == {"home": {"city": "Split"}}


@pytest.mark.parametrize("kind", ["PROTOBUF", "JSON"])
def test_a_schema_that_is_none_of_avro_says_so(registry_server: RegistryServer, kind: str) -> None:
    """Its text would be taken for a broken schema."""
    schema = {"schema": "syntax = 'proto3';", "schemaType": kind}
    registry_server.pages = {"/schemas/ids/1": schema, "/subjects/example/versions/1": {"id": 1, **schema}}
    url = registry_server.url()
    for nack in (
        decode(Record("1", {}, WIRE + b"\x02x"), url),
        one("avro.encode", Record("1", {}, {"a": 1}), {**FIRST, "url": url}),
    ):
        assert isinstance(nack, Nack) and nack.code == "avro.unknown_schema"
        assert f"is of the type {kind}, not of Avro" in nack.message

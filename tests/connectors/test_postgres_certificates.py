"""A PostgreSQL with TLS: its certificates change while it is used, and each mistake in the URL is one clear error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from lab.certificates import Authority, Certificate
from lab.postgres_lab import PostgresLab, create
from lab.postgres_server import PostgresServer, installations
from lab.waiting import wait_until

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.state.database import open_database

pytestmark = pytest.mark.slow
SECRET = "open-sesame-7"


class Guarded(NamedTuple):
    """A server with TLS that asks clients for a certificate, and files for them."""

    server: PostgresServer
    ours: Authority
    others: Authority
    folder: Path

    def serve(self, certificate: Certificate) -> None:
        """Give the server another certificate, which new connections get."""
        self._own("server.crt", certificate.chain)
        self._own("server.key", certificate.key)

    def trust(self) -> None:
        """Let clients in with a certificate of ours for ``alice``, or else with a password."""
        self._own("clients.crt", self.ours.certificate)
        self._own("pg_ident.conf", "clients alice conduit\n")
        rules = "hostssl alice all all cert clientcert=verify-full map=clients\nhost all all all scram-sha-256\n"
        self._own("pg_hba.conf", rules)

    def _own(self, name: str, text: str) -> None:
        path = self.server.data / name
        path.write_text(text)
        path.chmod(0o600)
        if (user := self.server.runs_as["user"]) is not None:
            os.chown(path, user, -1)

    def file(self, name: str, text: str) -> Path:
        """Write a client's file, which no other user may read."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def url(self, database: str = "postgres", **parameters: object) -> str:
        """Return the URL of a database that verifies the server, and more."""
        given = {"sslmode": "verify-full", "sslrootcert": self.ours.path, **parameters}
        return f"{self.server.url(database)}?{'&'.join(f'{name}={value}' for name, value in given.items())}"

    def client(self, certificate: Certificate) -> dict[str, object]:
        """Return the parameters of a client's certificate."""
        chain, key = (self.file(name, text) for name, text in zip(("c.crt", "c.key"), certificate, strict=True))
        return {"sslcert": chain, "sslkey": key}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("certificates")
    with closing(PostgresServer(installations()[0])) as server:
        made = Guarded(server, Authority(folder, "ours"), Authority(folder, "others"), folder)
        made.serve(made.ours.issue("server", "IP:127.0.0.1"))
        made.trust()
        server.stop(immediate=False)
        server.settings.extend(("ssl=on", "ssl_ca_file=clients.crt"))
        server.start()
        PostgresLab(server.url(), folder).execute("CREATE DATABASE alice")
        yield made


def test_certificates_that_are_replaced_need_no_restart(guarded: Guarded, tmp_path: Path) -> None:
    """An open connection goes on; later ones read the files anew."""
    known = guarded.file("known.pem", guarded.ours.certificate)
    lab = PostgresLab(guarded.url(sslrootcert=known), tmp_path)
    plain = PostgresLab(guarded.server.url(), tmp_path)
    plain.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    lab.deliver(destination, [create(1)])
    guarded.serve(guarded.others.issue("server", "IP:127.0.0.1"))
    plain.execute("SELECT pg_reload_conf()")
    lab.deliver(destination, [create(2)])
    destination.close()
    delivery = lab.stage(plain.destination(), [create(3)])

    def refused() -> TransientError | None:
        try:
            lab.destination().check()
        except TransientError as error:
            return error
        return None

    wait_until(lambda: refused() is not None, "the server shows its new certificate")
    with pytest.raises(TransientError) as error:
        destination.publish(delivery)
    assert "certificate" in str(error.value) and "sslrootcert" in str(error.value.fix)
    guarded.file("known.pem", guarded.ours.certificate + guarded.others.certificate)
    destination.publish(delivery)
    assert plain.rows() == [(1,), (2,), (3,)]
    guarded.serve(guarded.ours.issue("server", "IP:127.0.0.1"))
    plain.execute("SELECT pg_reload_conf()")
    destination.close()
    wait_until(lambda: refused() is None, "the server shows its first certificate")


MISTAKES = {
    "a missing authority": ({"sslrootcert": "/missing.pem"}, '"/missing.pem" does not exist', "sslrootcert"),
    "a mode that is none": ({"sslmode": "verifyfull"}, 'sslmode value: "verifyfull"', "what the message names"),
    "a missing key": ({"sslcert": "CERT", "sslkey": "/missing"}, 'file "/missing"', "sslkey"),
    "no certificate": ({"sslcert": "/dev/null"}, 'certificate file "/dev/null"', "correct sslcert"),
    "a weak mode": ({"sslmode": "require", "sslrootcert": "system"}, "weak sslmode", "message names"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_url_is_named(mistake: str, guarded: Guarded, tmp_path: Path) -> None:
    given, said, fix = MISTAKES[mistake]
    client = guarded.client(guarded.ours.issue("alice"))
    parameters = {name: client["sslcert"] if value == "CERT" else value for name, value in given.items()}
    require_told(PostgresLab(guarded.url(**parameters), tmp_path), said, fix)


def require_told(lab: PostgresLab, said: str, fix: str) -> None:
    """Require that the error of a destination says this, and how to correct it, and not that the server is down."""
    with pytest.raises(TransientError) as error:
        lab.destination().check()
    assert error.value.code == "postgres.unreachable"
    assert said in str(error.value) and fix in str(error.value.fix) and "start the server" not in str(error.value.fix)


def test_a_client_s_certificate_that_is_refused_is_not_said_to_be_the_server_s(
    guarded: Guarded, tmp_path: Path
) -> None:
    def told(certificate: Certificate, said: str) -> None:
        require_told(PostgresLab(guarded.url("alice", **guarded.client(certificate)), tmp_path), said, "sslcert")

    good = guarded.ours.issue("alice")
    PostgresLab(guarded.url("alice", **guarded.client(good)), tmp_path).destination(create_table="auto").check()
    told(guarded.ours.issue("alice", days=-1), "expired")
    told(guarded.others.issue("alice"), "unknown ca")
    told(Certificate(good.chain, guarded.ours.issue("alice").key), "mismatch")


def test_a_key_with_a_password_is_not_asked_for_at_the_terminal(
    guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would wait for an answer without end; this shows where there is no terminal, too."""
    monkeypatch.setenv("PGSERVICEFILE", str(guarded.file("services", f"[shop]\nsslpassword={SECRET}\n")))
    good = guarded.ours.issue("alice")
    locked = guarded.client(Certificate(good.chain, guarded.ours.lock(good.key, SECRET)))
    require_told(PostgresLab(guarded.url("alice", **locked), tmp_path), "private key file", "sslpassword")
    with pytest.raises(TransientError, match="private key file"):
        open_database(guarded.url("alice", **locked))
    for known in ({"sslpassword": SECRET}, {"service": "shop"}):
        url = guarded.url("alice", **locked, **known)
        open_database(url).dispose()
        PostgresLab(url, tmp_path).destination(create_table="auto").check()
    assert "pass phrase" not in "".join(capfd.readouterr())

"""Certificates for tests, made with ``openssl``: authorities, and what they sign."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificate(NamedTuple):
    """A certificate and its private key as PEM text."""

    chain: str
    key: str

    def write(self, path: Path) -> Path:
        """Writes both into one file, the key first, as Kafka takes a keystore."""
        path.write_text(self.key + self.chain)
        return path


class Authority:
    """A certificate authority with its own folder."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl, which makes the certificates: apt install openssl")
        self._folder, self._count = folder / name, 0
        self._folder.mkdir(parents=True)
        self._run(
            "req", "-x509", *_NEW_KEY, "-subj", f"/CN={name}", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem",
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip  # Python 3.13 refuses an authority without a usage

    @property
    def certificate(self) -> str:
        """The authority's own, which clients and servers trust."""
        return self._read("ca.pem")

    @property
    def path(self) -> Path:
        """The file with it."""
        return self._folder / "ca.pem"

    def issue(self, name: str, *hosts: str, days: int = 2) -> Certificate:
        """Signs a certificate with a new key for ``hosts``, such as ``IP:127.0.0.1`` or ``DNS:kafka.example``.

        One of -1 ``days`` has expired.
        """
        self._count += 1
        key, request, signed = (f"{self._count}.{ending}" for ending in ("key", "csr", "pem"))
        self._run("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        (self._folder / "extensions").write_text(f"subjectAltName={','.join(hosts)}\n" if hosts else "")
        self._run(
            "x509", "-req", "-in", request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", f"{days}",
            "-extfile", "extensions", "-out", signed,
        )  # fmt: skip
        return Certificate(self._read(signed), self._read(key))

    def lock(self, key: str, password: str) -> str:
        """Encrypts a private key."""
        (self._folder / "plain.key").write_text(key)
        self._run("pkcs8", "-topk8", "-in", "plain.key", "-passout", f"pass:{password}", "-out", "locked.key")
        return self._read("locked.key")

    def _read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def _run(self, *words: str) -> None:
        found = subprocess.run(["openssl", *words], cwd=self._folder, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr

"""Credentials among settings are masked wherever they are quoted, whatever the origin of their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config import parse_text
from conduit_dagster.config.project import Project
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.secret_values import hide, remember_credentials


@pytest.mark.parametrize(
    ("settings", "text", "shown"),
    [
        ({"url": "postgresql://me:s3cret@db/x"}, "s3cret of me", "*** of me"),
        ({"url": "postgresql://me:p%40ss@db/x"}, "p@ss or p%40ss", "*** or ***"),
        ({"url": "host=db password='a b c' user=me"}, "is a b c", "is ***"),
        ({"password": "Tr0ub4dor"}, "Tr0ub4dor", "***"),
        ({"sasl.password": "correct horse battery"}, "a horse: correct horse battery", "a horse: ***"),
        ({"headers.Authorization": "Bearer abc-123"}, "sent abc-123", "sent ***"),
        ({"fs.secret.key.id": "AKIA1234", "secretAccessKey": "wJalr/1234"}, "AKIA1234 wJalr/1234", "AKIA1234 ***"),
        # masking these would make every text unreadable
        ({"url": "postgresql://postgres:postgres@db/x"}, "builtin:postgres", "builtin:postgres"),
        ({"user": "reader1", "password": "reader1"}, "reader1", "reader1"),
        ({"format.options.token": "string", "max.token": "1000"}, "a string of 1000", "a string of 1000"),
        ({"password": "abc"}, "abc", "abc"),
    ],
)
def test_which_and_where(settings: dict[str, str], text: str, shown: str) -> None:
    remember_credentials(settings)
    assert hide(text) == shown


def test_not_the_plugins_name() -> None:
    remember_credentials({"url": "postgresql://me:delta@db/x"}, "spark:delta")
    assert hide("spark:delta") == "spark:delta"


def test_those_of_a_file_from_its_reading_on() -> None:
    text = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in}}
      - {id: out, type: destination, plugin: postgres, settings: {url: "$DB", table: t}}
    processors:
      - {id: h, plugin: webhook.http, settings: {request.url: "http://x/", headers.Authorization: "Bearer tok-1234"}}
    dead-letter-queue: {plugin: postgres, settings: {url: "postgresql://me:s3cond@db/x", table: t}}
"""
    parse_text(text, "f.yaml", {"DB": "postgresql://me:f1rst@db/x"})
    assert hide("f1rst s3cond tok-1234 me") == "*** *** *** me"


def test_a_reference_without_a_value_is_no_secret(tmp_path: Path) -> None:
    """It stays in its setting as written: what is to be set, and how, is told in full, however often it is read."""
    (tmp_path / "conduit.yaml").write_text("spark: {conf: {spark.my.password: '${NOT_SET_1}'}}\n")
    settings = """settings: {url: "postgresql://me:${file:none}@db/x", table: t, password: "${NOT_SET_2}"}"""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "p.yaml").write_text(f"""
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: ./in}}}}
      - {{id: out, type: destination, plugin: postgres, {settings}}}
    processors:
      - id: h
        plugin: webhook.http
        settings: {{request.url: "http://x/", headers.Authorization: "Bearer $NOT_SET_3"}}
""")
    for _ in range(2):
        project = Project.find(tmp_path, {})
        catalogue = open_catalogue(project)
        found = {one.got: one.fix for one in (*project.findings, *catalogue.findings)}
        assert list(found) == ["${NOT_SET_1}", "${file:none}", "${NOT_SET_2}", "$NOT_SET_3"]
        assert found["${NOT_SET_2}"] == "set NOT_SET_2, or write $${NOT_SET_2} literally"

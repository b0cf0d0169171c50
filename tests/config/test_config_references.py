"""References in a setting to variables and files: their values, and one finding for each that has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lab.file_rights import obeyed
from lab.pipeline_texts import DESCRIBED

from conduit_dagster.config import ParsedFile, load, parse_text, references
from conduit_dagster.config.project import Project
from conduit_dagster.config.references import LARGEST_SECRET, expand, offset_of
from conduit_dagster.config.secret_providers import Unresolved
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.secret_values import hide
from conduit_dagster.state.claim import project_store

ENV = {"A": "1", "LONG_NAME": "two", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "1"),
        ("$A", "1"),
        ("$A/$LONG_NAME", "1/two"),
        ("x${A}y", "x1y"),
        ("$$A", "$A"),
        ("$${A}", "${A}"),
        ("$$$A", "$1"),
        ("[${EMPTY}]", "[]"),
        ("costs 5$", "costs 5$"),
        ("$ 5, $1, $.x, $-", "$ 5, $1, $.x, $-"),
        ("no reference", "no reference"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    expanded = expand(text, ENV)
    assert (expanded.text, expanded.bad) == (expected, ())


def test_value_is_not_expanded_again() -> None:
    assert expand("$A", {"A": "$A"}).text == "$A"


@pytest.mark.parametrize(
    ("text", "name"),
    [("$NOPE", "NOPE"), ("${NOPE}", "NOPE"), ("${A:-1}", "A:-1"), ("${}", None), ("${A", None)],
)
def test_bad_reference_stays_as_written(text: str, name: str | None) -> None:
    expanded = expand(f"$$ {text}", ENV)
    assert expanded.text == f"$ {text}"
    assert [(bad.ordinal, bad.name) for bad in expanded.bad] == [(1, name)]
    assert offset_of(f"'$$ {text}'", 1) == 4


def test_go_template_variable_is_a_reference() -> None:
    """As in Conduit; two dollars escape it."""
    assert [bad.name for bad in expand("{{ $x }}", {}).bad] == ["x"]
    assert expand("{{ $$x }}", {}).text == "{{ $x }}"


def parse(reference: str, root: Path, **env: str) -> ParsedFile:
    return parse_text(DESCRIBED % reference, "f.yaml", env, root=root)


def value(reference: str, root: Path, **env: str) -> str:
    parsed = parse(reference, root, **env)
    assert parsed.findings == []
    return parsed.pipelines[0].config.description


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"hunter22", "hunter22"),
        (b"hunter22\n", "hunter22"),
        (b"hunter22\r\n", "hunter22"),
        (b"two\nlines\n\n", "two\nlines\n"),
        (" h\u00fcnter ".encode(), " h\u00fcnter "),
        (b"${A} $$", "${A} $$"),
    ],
)
def test_a_files_text_without_one_line_end(tmp_path: Path, content: bytes, wanted: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert value("${file:secret}", tmp_path) == wanted
    assert value(f"[${{file:{tmp_path}/secret}}]", Path("/")) == f"[{wanted}]"
    assert hide(wanted) == "***"


def test_a_variable_in_both_spellings(tmp_path: Path) -> None:
    assert value("${env:A} ${A} $A $${env:A}", tmp_path, A="1") == "1 1 1 ${env:A}"
    # a value from the environment is not necessarily a secret: a port, a path
    assert hide("orders") == "orders"


def test_a_variable_of_that_very_name_is_what_it_was(tmp_path: Path) -> None:
    assert value("${file:x}", tmp_path, **{"file:x": "as in Conduit"}) == "as in Conduit"


@pytest.mark.parametrize(
    ("reference", "code", "said"),
    [
        ("${env:NOPE}", "config.env_unset", "the environment variable NOPE is not set"),
        ("${env:}", "config.env_invalid", "names no environment variable"),
        ("${NOPE:-x}", "config.env_unset", "the environment variable NOPE:-x is not set"),
        ("${nope:-x}", "config.env_unset", "the environment variable nope:-x is not set"),
        ("${file:}", "config.secret_unreadable", "names no file"),
        ("${file:missing}", "config.secret_unreadable", "No such file or directory"),
        ("${file:.}", "config.secret_unreadable", "not a regular file"),
        ("${file:pipe}", "config.secret_unreadable", "not a regular file"),
        ("${file:latin}", "config.secret_unreadable", "not UTF-8: byte 1"),
        ("${file:binary}", "config.secret_unreadable", "is binary"),
        ("${file:empty}", "config.secret_unreadable", "is empty"),
        ("${file:large}", "config.secret_unreadable", "larger than 64 KiB"),
        ("${fil:x}", "config.secret_unknown", "no provider of secrets called fil"),
    ],
)
def test_one_finding_with_its_place(tmp_path: Path, reference: str, code: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"h\xfc")
    (tmp_path / "binary").write_bytes(b"h\0")
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "large").write_bytes(b"x" * (LARGEST_SECRET + 1))
    [finding] = parse(f"at {reference}", tmp_path).findings
    assert (finding.code, finding.line, finding.column) == (code, 4, 22)
    assert said in finding.message and finding.got == reference and finding.fix
    assert finding.expected or code.startswith("config.env")


def test_an_unreadable_one(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0)
    with obeyed():
        [finding] = parse("${file:secret}", tmp_path).findings
    assert "Permission denied" in finding.message


def test_a_nearby_name_is_proposed(tmp_path: Path) -> None:
    [finding] = parse("${fille:x}", tmp_path).findings
    assert finding.fix == "did you mean file?" and finding.expected == "one of env, file"


def test_it_hides_only_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DESCRIBED % "${file:missing}")
    (tmp_path / "b.yaml").write_text((DESCRIBED % "fine").replace("id: p", "id: q"))
    assert [one.config.id for one in load([tmp_path], root=tmp_path).runnable()] == ["q"]


def test_the_projects_settings(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sqlite:///hunter22.db\n")
    (tmp_path / "conduit.yaml").write_text('state: {url: "${file:secret}"}\nspark.url: "${file:nope}"\n')
    project = Project.find(tmp_path / "below", {})
    assert project.settings.state.url == "sqlite:///hunter22.db"
    [finding] = project.findings
    assert (finding.code, finding.line, finding.column) == ("config.secret_unreadable", 2, 13)


def test_no_finding_and_no_representation_holds_the_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter22")
    text = (DESCRIBED % "d").replace("id: p", "id: ${file:secret} !\n    status: ${file:secret}")
    parsed = parse_text(text, "f.yaml", {}, root=tmp_path)
    assert len(parsed.findings) == 2
    assert not any("hunter22" in finding.render() for finding in parsed.findings)
    assert "hunter22" not in repr(parsed.pipelines[0].document.secrets)


@pytest.mark.parametrize(("line", "code"), [("url", "state.url"), ("staging", "state.url")])
def test_no_other_store_is_opened_where_its_place_is_unknown(tmp_path: Path, line: str, code: str) -> None:
    """Its default is empty: everything would be read and delivered again."""
    (tmp_path / "conduit.yaml").write_text(f'state.{line}: "${{file:missing}}"\n')
    with pytest.raises(FatalError, match="where the project's state is can't be told") as caught:
        project_store(Project.find(tmp_path, {}))
    assert caught.value.code == code and not (tmp_path / ".conduit").exists()


@pytest.mark.parametrize(
    "text",
    [
        "state.url: mysql://h/d",
        "state.staging: [1]",
        "state: {log: {}, url: 'nope'}",
        "state: postgresql://h/d",
        "state: {lease: 10s}\nstate: {url: postgresql://h/d}",
        "state: {url: 'sqlite:///a.db'}\nstate.url: postgresql://h/d",
        "state: {url: postgresql://h/d",
        "log: {level: info}\n---\nstate: {url: postgresql://h/d}",
        "\tstate: {url: postgresql://h/d}",
    ],
)
def test_nor_where_its_place_is_wrong(tmp_path: Path, text: str) -> None:
    (tmp_path / "conduit.yaml").write_text(f"{text}\n")
    with pytest.raises(FatalError, match="where the project's state is can't be told") as caught:
        project_store(Project.find(tmp_path, {}))
    assert caught.value.code == "state.url" and not (tmp_path / ".conduit").exists()


def test_a_mistake_elsewhere_in_the_settings_keeps_the_store_known(tmp_path: Path) -> None:
    text = "state: {lease: 10, ur: x}\nlog.level: loud\nspark: {url: nope}\nstate.history: 90d\nfoo: 1\n"
    (tmp_path / "conduit.yaml").write_text(text)
    project = Project.find(tmp_path, {})
    assert project.findings
    project_store(project).dispose()


def test_a_provider_that_is_away_is_worth_another_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Unresolved("config.secret_failed", "vault is away")
    monkeypatch.setattr(references, "ask_provider", lambda name, reference: away)
    (tmp_path / "conduit.yaml").write_text('state: {url: "${vault:x}"}\n')
    with pytest.raises(TransientError, match="vault is away"):
        project_store(Project.find(tmp_path, {}))

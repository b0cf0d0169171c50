"""Secret providers from an installed package."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.pipeline_texts import DESCRIBED

from conduit_dagster.config import Finding, load, parse_text, secret_providers
from conduit_dagster.secret_values import hide

MODULE = """
import os, sys, time
from conduit_dagster.sdk import SecretError, SecretProvider

calls = []


def vault(reference: str, /) -> str:
    calls.append(reference)
    path, _, key = reference.partition("#")
    if path == "denied":
        raise SecretError("no right to denied", fix="ask for the role reader")
    if path == "broken":
        raise KeyError("token-of-the-provider")
    if path == "exits":
        sys.exit(3)
    if path == "hangs":
        time.sleep(60)
    return {"empty": "", "number": 5, "odd": "\\ud800"}.get(path, f"value of {key}")


provider: SecretProvider = vault
"""
POINTS = """
[conduit_dagster.secrets]
vault = safe_package:vault
gone = no_such_package:get
twice = safe_package:vault
"""


def install(site: Path, name: str, points: str) -> None:
    """A package, as far as Python is concerned."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(points)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "site", "safe", POINTS)
    install(tmp_path / "site", "other", "[conduit_dagster.secrets]\ntwice = safe_package:vault\n")
    (tmp_path / "site" / "safe_package.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    secret_providers.forget_answers()
    yield
    secret_providers.forget_answers()


def findings(reference: str) -> list[Finding]:
    return parse_text(DESCRIBED % reference, "f.yaml", {}).findings


def test_the_value_it_returns() -> None:
    parsed = parse_text(DESCRIBED % "a ${vault:kv/db#password}", "f.yaml", {})
    assert parsed.findings == []
    assert parsed.pipelines[0].config.description == "a value of password"
    assert hide("it is value of password") == "it is ***"


@pytest.mark.parametrize(
    ("reference", "code", "said"),
    [
        ("vault:denied", "config.secret_failed", "the provider of secrets vault says: no right to denied"),
        ("vault:broken", "config.secret_failed", "the provider of secrets vault failed: it raised KeyError"),
        ("vault:exits", "config.secret_failed", "the provider of secrets vault failed: it raised SystemExit"),
        ("vault:empty", "config.secret_failed", "the provider of secrets vault returned an empty text"),
        ("vault:number", "config.secret_failed", "the provider of secrets vault returned a int"),
        ("gone:x", "config.secret_failed", "the provider of secrets gone cannot be loaded: ModuleNotFoundError"),
        ("twice:x", "config.secret_unknown", "several packages bring a provider of secrets called twice: other, safe"),
        ("vualt:x", "config.secret_unknown", "there is no provider of secrets called vualt"),
    ],
)
def test_what_is_wrong_is_one_finding(reference: str, code: str, said: str) -> None:
    [finding] = findings(f"a ${{{reference}}}")
    assert (finding.code, finding.line, finding.column, finding.got) == (code, 4, 21, f"${{{reference}}}")
    assert finding.message.startswith(said) and finding.expected and finding.fix
    # an exception's own text may quote a credential: it is in the traceback, which is shown on request
    assert "token-of-the-provider" not in finding.render()
    assert ("token-of-the-provider" in finding.render(debug=True)) == (reference == "vault:broken")


def test_its_fix_is_shown() -> None:
    assert findings("${vault:denied}")[0].fix == "ask for the role reader"
    assert findings("${vualt:x}")[0].fix == "did you mean vault?"


def test_a_text_that_is_no_unicode() -> None:
    assert [one.code for one in findings("${vault:odd}")] == ["config.text_invalid"]


def test_other_files_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(DESCRIBED % "${vault:broken}")
    (tmp_path / "b.yaml").write_text((DESCRIBED % "${vault:x#y}").replace("id: p", "id: q"))
    assert [one.config.id for one in load([tmp_path]).runnable()] == ["q"]


def test_one_that_hangs_costs_its_time_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_providers, "TIME_LIMIT", 0.5)
    waits, join = list[float | None](), threading.Thread.join

    def joined(thread: threading.Thread, seconds: float | None = None) -> None:
        if thread.name.startswith("secrets-"):
            waits.append(seconds)
        join(thread, seconds)

    monkeypatch.setattr(threading.Thread, "join", joined)
    found = findings("${vault:hangs} ${vault:x#y} ${vault:hangs}")
    assert waits == [0.5]
    assert {one.message for one in found} == {"the provider of secrets vault did not answer within 0.5 s"}
    assert len(found) == 3


def test_one_that_hangs_for_good_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_providers, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(secret_providers, "_FAILED", 0.0)
    before = set(threading.enumerate())
    for _ in range(3):
        assert findings("${vault:hangs}")[0].code == "config.secret_failed"
    assert [thread.name for thread in threading.enumerate() if thread not in before] == ["secrets-vault"]


def test_it_is_not_asked_again_at_once() -> None:
    for _ in range(3):
        assert findings("${vault:a#b}${vault:denied}") != []
    from safe_package import calls  # pyright: ignore

    assert sorted(calls[-2:]) == ["a#b", "denied"] and calls.count("a#b") == 1

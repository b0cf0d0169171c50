"""Recovery settings: globally by file and environment, overridden per pipeline; one finding for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config import Project
from conduit_dagster.config.delivery import Recovery
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.parse import parse_text
from conduit_dagster.recovery.policy import Policy

PIPELINE = """\
version: "2.2"
pipelines:
  - id: orders
    recovery: {{{0}}}
    connectors:
      - {{id: in, type: source, plugin: file}}
      - {{id: out, type: destination, plugin: file}}
"""
MISTAKES = [
    ("min-delay", "20m", "min-delay (1200s) is longer than max-delay (600s)", "min-delay at most max-delay", None),
    ("min-delay", "5", "not a duration", "a duration such as 500ms, 30s or 1h30m", "add a unit: 5s"),
    ("max-delay", "10", "not a duration", "a duration such as 500ms, 30s or 1h30m", "add a unit: 10s"),
    ("max-retries-window", "-5m", "the duration is negative", "a duration of 0s or more", None),
    ("min-delay", "0s", "the duration is zero", "a duration longer than 0s", None),
    ("backoff-factor", "-2", "backoff-factor must be at least 0.0", "at least 0.0", None),
    ("backoff-factor", "0.5", "the wait would shrink", "0, or 1 and more", None),
    ("max-retries", "-2", "max-retries must be at least -1", "at least -1", None),
    ("max-retries", "2.5", "max-retries must be a whole number", "a whole number", None),
    ("jitter", "maybe", "jitter must be true or false", "true or false", None),
]


def facts(findings: list[Finding]) -> tuple[str, str, str | None, str | None]:
    """The text of the one finding."""
    assert len(findings) == 1, [finding.render() for finding in findings]
    found = findings[0]
    assert (found.code, found.is_error) == ("config.field_invalid", True)
    return found.path, found.message, found.expected, found.fix


@pytest.mark.parametrize(("key", "value", "message", "expected", "fix"), MISTAKES)
def test_in_a_pipeline(key: str, value: str, message: str, expected: str, fix: str | None) -> None:
    found = parse_text(PIPELINE.format(f"{key}: {value}"), "f.yaml", {}).findings
    assert facts(found) == (f"/pipelines/0/recovery/{key}", message, expected, fix)
    assert (found[0].line, found[0].got) == (4, value)


@pytest.mark.parametrize("section", ["recovery", "pipelines.error-recovery"])
@pytest.mark.parametrize(("key", "value", "message", "expected", "fix"), MISTAKES)
def test_in_the_settings_file(
    tmp_path: Path, section: str, key: str, value: str, message: str, expected: str, fix: str | None
) -> None:
    (tmp_path / "conduit.yaml").write_text(f"{section}.{key}: {value}\n")
    found = list(Project.find(tmp_path, {}).findings)
    assert facts(found) == (f"/pipelines/error-recovery/{key}", message, expected, fix)
    assert (Path(found[0].file).name, found[0].line) == ("conduit.yaml", 1)


@pytest.mark.parametrize("prefix", ["CONDUIT_RECOVERY_", "CONDUIT_PIPELINES_ERROR_RECOVERY_"])
@pytest.mark.parametrize(("key", "value", "message", "expected", "fix"), MISTAKES)
def test_in_the_environment(
    tmp_path: Path, prefix: str, key: str, value: str, message: str, expected: str, fix: str | None
) -> None:
    """The finding names the variable."""
    name = prefix + key.replace("-", "_").upper()
    found = list(Project.find(tmp_path, {name: value}).findings)
    assert facts(found) == (f"/pipelines/error-recovery/{key}", message, expected, fix)
    assert found[0].file == f"${name}"


def test_the_environment_goes_over_the_file_and_the_pipeline_over_both(tmp_path: Path) -> None:
    (tmp_path / "conduit.yaml").write_text("pipelines.error-recovery: {max-retries: 3, min-delay: 2s, max-delay: 1m}\n")
    env = {"CONDUIT_RECOVERY_MIN_DELAY": "3s", "CONDUIT_PIPELINES_ERROR_RECOVERY_BACKOFF_FACTOR": "3"}
    env |= {"CONDUIT_RECOVERY_JITTER": "true", "CONDUIT_RECOVERY_MAX_RETRIES_WINDOW": "1h30m"}
    project = Project.find(tmp_path, env)
    assert project.findings == ()
    assert Policy.of(Recovery(), project.settings.recovery) == Policy(3, 60, 3, 3, 5400, True)
    parsed = parse_text(
        PIPELINE.format("max-retries: 0, jitter: false"), "f.yaml", {}, False, project.settings.recovery
    )
    assert parsed.findings == []
    own = parsed.pipelines[0].config.recovery
    assert Policy.of(own, project.settings.recovery) == Policy(3, 60, 3, 0, 5400, False)


def test_the_shorter_variable_is_the_stronger_one(tmp_path: Path) -> None:
    env = {"CONDUIT_RECOVERY_MAX_RETRIES": "4", "CONDUIT_PIPELINES_ERROR_RECOVERY_MAX_RETRIES": "5"}
    assert Project.find(tmp_path, env).settings.recovery.max_retries == 4


def test_delays_of_file_and_environment_that_do_not_fit(tmp_path: Path) -> None:
    """The variable is named, because it overrides the file."""
    (tmp_path / "conduit.yaml").write_text("recovery.max-delay: 10s\n")
    found = list(Project.find(tmp_path, {"CONDUIT_RECOVERY_MIN_DELAY": "1m"}).findings)
    assert facts(found)[1] == "min-delay (60s) is longer than max-delay (10s)"
    assert found[0].file == "$CONDUIT_RECOVERY_MIN_DELAY"
    found = list(Project.find(tmp_path, {"CONDUIT_RECOVERY_MAX_DELAY": "500ms"}).findings)
    assert found[0].file == "$CONDUIT_RECOVERY_MAX_DELAY"


def test_delays_of_pipeline_and_project_that_do_not_fit(tmp_path: Path) -> None:
    project = Project.find(tmp_path, {"CONDUIT_RECOVERY_MIN_DELAY": "2m"})
    found = parse_text(PIPELINE.format("max-delay: 1m"), "f.yaml", {}, False, project.settings.recovery).findings
    assert facts(found)[:2] == ("/pipelines/0/recovery/max-delay", "min-delay (120s) is longer than max-delay (60s)")


def test_a_misspelled_key_is_named() -> None:
    found = parse_text(PIPELINE.format("max-retires: 3"), "f.yaml", {}).findings
    assert [(finding.code, finding.fix) for finding in found] == [("config.field_unknown", "did you mean max-retries?")]

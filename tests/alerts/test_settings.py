"""The ``alerts`` and ``metrics`` sections of ``conduit.yaml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config.project import Project
from conduit_dagster.config.project_settings import address_of


def project(folder: Path, text: str, **env: str) -> Project:
    (folder / "conduit.yaml").write_text(text)
    return Project.find(folder, env)


def test_all_of_it(tmp_path: Path) -> None:
    text = (
        "alerts:\n  webhook: ${URL}\n  headers: {Authorization: 'Bearer ${TOKEN}', X-Room: 7}\n"
        "  on: [dead-letters]\n  dead-letter-growth: 10\n  interval: 1d\nmetrics: {listen: '[::1]:9400'}\n"
    )
    found = project(tmp_path, text, URL="https://host:8443/s3cr3t?x=1", TOKEN="s3cr3t")
    alerts = found.settings.alerts
    assert found.findings == ()
    assert (alerts.webhook, alerts.on) == ("https://host:8443/s3cr3t?x=1", ["dead-letters"])
    assert alerts.headers == {"Authorization": "Bearer s3cr3t", "X-Room": "7"}
    assert (alerts.dead_letter_growth, alerts.interval) == (10, 86_400.0)
    assert found.settings.metrics.listen == "[::1]:9400"
    assert "s3cr3t" not in repr(found.settings)


def test_the_defaults(tmp_path: Path) -> None:
    alerts = project(tmp_path, "").settings.alerts
    assert (alerts.webhook, alerts.headers, alerts.on) == (None, {}, ["degraded", "dead-letters"])
    assert (alerts.dead_letter_growth, alerts.interval) == (1, 300.0)


def test_the_environment_wins(tmp_path: Path) -> None:
    env = {"CONDUIT_ALERTS_WEBHOOK": "http://h/x", "CONDUIT_ALERTS_ON": "degraded", "CONDUIT_METRICS_LISTEN": "h:1"}
    found = project(tmp_path, "alerts: {on: [dead-letters]}\n", **env)
    assert found.findings == ()
    assert (found.settings.alerts.webhook, found.settings.alerts.on) == ("http://h/x", ["degraded"])
    assert found.settings.metrics.listen == "h:1"


@pytest.mark.parametrize(
    "line",
    [
        "webhook: ${BAD}",
        "webhook: ftp://h/x",
        "webhook: https:///x",
        "webhook: not a url",
        "webhook: http://h/a b",
        "webhook: http://h/ü",
        "webhook: http://me:s3cr3t@h/x",
        "webhook: http://[::1/x",
        "webhook: http://h:99999999/x",
        "headers: {A: ${BAD}}",
        'headers: {A: "s3cr3t\\r\\nB: c"}',
        "headers: {'a b': c}",
        "headers: [a]",
        "on: [everything]",
        "dead-letter-growth: 0",
        "interval: 0s",
    ],
)
def test_what_is_refused_and_shows_no_value_of_the_environment(tmp_path: Path, line: str) -> None:
    found = project(tmp_path, f"alerts:\n  {line}\n", BAD="http://env-secret@h/x\n")
    errors = [finding for finding in found.findings if finding.is_error]
    assert errors
    assert "env-secret" not in "".join(finding.render() for finding in errors)
    assert found.settings.alerts == Project.find(tmp_path / "nothing").settings.alerts


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("my-host.example:0", ("my-host.example", 0)),
        ("[::1]:80", ("::1", 80)),
        ("::1:80", None),
        ("host", None),
        (":9400", None),
        ("9400", None),
        ("host:65536", None),
        ("host:x", None),
        ("http://host:80", None),
        ("", None),
    ],
)
def test_an_address(text: str, address: tuple[str, int] | None) -> None:
    assert address_of(text) == address


def test_a_listening_address_that_is_none_is_a_finding(tmp_path: Path) -> None:
    (finding,) = project(tmp_path, "metrics: {listen: '9400'}\n").findings
    assert (finding.is_error, finding.expected) == (True, "HOST:PORT, such as 127.0.0.1:9400")

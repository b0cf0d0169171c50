from __future__ import annotations

import pytest

from conduit_dagster.config.findings import Finding, did_you_mean, nearest, shown

FINDING = Finding("config.x", "error", "orders.yaml", 12, 7, "/pipelines/0/id", "it is wrong", "a", "b", "write b")


def test_render_has_place_and_remedy() -> None:
    assert FINDING.render() == (
        "orders.yaml:12:7: error config.x at /pipelines/0/id: it is wrong\n"
        "  got:      a\n"
        "  expected: b\n"
        "  fix:      write b"
    )


def test_render_leaves_out_what_is_not_known() -> None:
    finding = Finding("config.x", "warning", "f", 1, 1, "", "m")
    assert finding.render() == "f:1:1: warning config.x: m"


def test_json_has_every_field() -> None:
    assert FINDING.as_json() == {
        "code": "config.x",
        "severity": "error",
        "file": "orders.yaml",
        "line": 12,
        "column": 7,
        "path": "/pipelines/0/id",
        "message": "it is wrong",
        "got": "a",
        "expected": "b",
        "fix": "write b",
    }


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("deadLetterQueue", "dead-letter-queue"),
        ("dead_letter_queue", "dead-letter-queue"),
        ("statsu", "status"),
    ],
)
def test_nearest(word: str, match: str) -> None:
    assert nearest(word, ["id", "status", "dead-letter-queue"]) == match
    assert did_you_mean(word, ["id", "status", "dead-letter-queue"]) == f"did you mean {match}?"


def test_nothing_is_near() -> None:
    assert nearest("zzz", ["id", "status"]) is None
    assert did_you_mean("zzz", []) is None


def test_shown_is_short_and_one_line() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 1000)) == 120
    assert shown("") == "''"

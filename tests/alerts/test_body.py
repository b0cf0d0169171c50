"""What an alert says, and that the documentation shows it as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from conduit_dagster.alerts.decide import Alert, PipelineStanding, body

DOCUMENT = Path(__file__).parents[2] / "docs" / "alerts.md"
AT = 1_785_664_800 * 1_000_000_000  # 2026-08-02T10:00:00Z
ERROR: dict[str, Any] = {
    "code": "postgres.no_table",
    "message": "there is no table orders",
    "node": "orders:out",
    "place": None,
    "fix": "create it",
    "fatal": True,
}


def degraded(**error: Any) -> dict[str, Any]:
    return body(
        Alert("degraded", PipelineStanding("orders", "degraded", "r:1", "", {**ERROR, **error}, 12)), "shop", AT
    )


def test_the_document_shows_a_real_one() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert json.loads(example) == degraded()


def test_dead_letters_in_words_and_numbers() -> None:
    alert = Alert(
        "dead-letters", PipelineStanding("orders", "running", dead_letters=1_012), 1_000, AT - 60 * 1_000_000_000
    )
    said = body(alert, "shop", AT)
    assert said["text"] == "orders: 1,000 new dead letters since 2026-08-02T09:59:00Z, 1,012 in all"
    assert said["dead_letters"] == {"total": 1012, "new": 1000, "since": "2026-08-02T09:59:00Z"}
    assert (said["alert"], said["status"], said["error"]) == ("dead-letters", "running", None)


def test_an_error_without_node_or_fix() -> None:
    assert degraded(node=None, fix=None)["text"] == "orders is degraded: postgres.no_table: there is no table orders"
    alone = body(Alert("degraded", PipelineStanding("orders", "degraded")), "shop", AT)
    assert (alone["text"], alone["error"]) == ("orders is degraded", None)


def test_a_records_text_calls_nobody() -> None:
    said = degraded(message="<!channel> & <@U1>")
    assert "&lt;!channel&gt; &amp; &lt;@U1&gt;" in said["text"]
    assert said["error"]["message"] == "<!channel> & <@U1>"


def test_passwords_are_masked() -> None:
    said = degraded(message="postgresql://me:hunter2@host/db", fix="try password=hunter2", place="x:hunter2")
    assert "hunter2" not in said["text"]
    assert said["error"]["message"] == "postgresql://me:***@host/db"


def test_a_long_message_is_cut_in_the_text_only() -> None:
    said = degraded(message="x" * 50_000, fix=None)
    assert len(said["text"]) < 1_100
    assert len(said["error"]["message"]) == 50_000

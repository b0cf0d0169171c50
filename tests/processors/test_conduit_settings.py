"""Settings of Conduit's processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from processors.conftest import make
from pydantic import ValidationError

Run = Callable[..., list[Any]]


def test_blanks_around_keys_and_values_are_trimmed(run: Run) -> None:
    """As in Conduit, and also around a literal."""
    settings = {" field ": "  .Payload.After.a ", "value": "  lit  "}
    assert run("field.set", settings, {}) == [{"a": "lit"}]
    assert run("field.convert", {"field": ".Payload.After.a", "type": " int "}, {"a": "1"}) == [{"a": 1}]


def test_an_empty_value_is_the_default(run: Run) -> None:
    document = {"operation": "create", "metadata": {}, "payload": {"after": {"a": 1}}}
    assert run("unwrap.opencdc", {"field": ""}, document) == [{"a": 1}]
    empty = dict.fromkeys(["response.body", "response.status", "request.method", "backoffRetry.count"], "")
    subject = make("webhook.http", {"request.url": "http://h/", "headers.X": "", **empty})
    assert subject.settings.response_body == ".Payload.After" and subject.settings.method == "GET"  # type: ignore[attr-defined]
    assert subject.settings.headers["X"] == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("field.set", {"field": ".Payload.After.a", "value": ""}),
        ("json.decode", {"field": " "}),
        ("clone", {"count": ""}),
    ],
)
def test_an_empty_value_is_none_where_one_is_needed(plugin: str, settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make(plugin, settings)

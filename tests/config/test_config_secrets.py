"""No secret among the settings is shown."""

from __future__ import annotations

import pytest

from conduit_dagster.secret_values import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@db:5432/x", "postgresql://me:***@db:5432/x"),
        ("postgresql://me:s:3/c@db/x", "postgresql://me:***@db/x"),
        ("postgresql://db/x?user=me&password=s3cret&sslmode=require", "postgresql://db/x?user=me&password=***&sslmode=require"),
        ("host=db password='a b' user=me", "host=db password=*** user=me"),
        ("${DATABASE_URL}", "${DATABASE_URL}"),
        ("./orders.jsonl", "./orders.jsonl"),
        ("https://example.com/a@b", "https://example.com/a@b"),
    ],
)  # fmt: skip
def test_passwords_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown

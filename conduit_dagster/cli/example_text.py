"""Human-readable examples of processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from conduit_dagster.readable import readable
from conduit_dagster.record import Record
from conduit_dagster.sdk import Example


@dataclass(frozen=True)
class ExampleText:
    """Input and output of an example, each record as JSON without its empty parts."""

    title: str
    settings: Mapping[str, str]
    given: str
    gives: tuple[str, ...]


def example_text(example: Example) -> ExampleText:
    """Return an example as shown in the reference."""
    gives = example.gives
    records = gives if isinstance(gives, list) else [gives] if isinstance(gives, Record) else None
    if records is None:
        said = f"nacked: {gives}" if isinstance(gives, str) else "dropped"
        return ExampleText(example.title, dict(example.settings), _text(example.given), (said,))
    return ExampleText(
        example.title, dict(example.settings), _text(example.given), tuple(_text(record) for record in records)
    )


def _text(record: Record) -> str:
    return json.dumps(readable(record), ensure_ascii=False)

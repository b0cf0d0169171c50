"""Every built-in has examples, and they are true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conduit_dagster.builtin_plugins import PROCESSORS
from conduit_dagster.cli.description_text import example_text
from conduit_dagster.cli.reference import settings_of
from conduit_dagster.record import Record, copy
from conduit_dagster.sdk import DROP, Example, Nack, Processor

CASES = [
    pytest.param(name, example, id=f"{name}: {example.title}")
    for name, kind in PROCESSORS.all().items()
    for example in kind.examples
]


@pytest.mark.parametrize("kind", PROCESSORS.all().values(), ids=PROCESSORS.all())
def test_each_has_one(kind: type[Processor]) -> None:
    assert kind.examples or not kind.deterministic
    assert kind.__doc__ and all(setting.description for setting in settings_of(kind.Settings, {}))


@pytest.mark.parametrize(("name", "example"), CASES)
def test_an_example_is_true(processor: Callable[..., Processor], name: str, example: Example) -> None:
    given = copy(example.given)
    [result] = processor(name, dict(example.settings)).process_block([given])
    if isinstance(example.gives, str):
        assert isinstance(result, Nack) and result.code == example.gives
    else:
        assert result == example.gives


@pytest.mark.parametrize(("name", "example"), CASES)
def test_shared_metadata_is_replaced(processor: Callable[..., Processor], name: str, example: Example) -> None:
    """Records of a split share it; a change to one must not affect its neighbours."""
    metadata = dict(example.given.metadata)
    first, second = (copy(example.given) for _ in range(2))
    first.metadata = second.metadata = metadata
    subject = processor(name, dict(example.settings))
    if subject.shares_records:
        subject.process_block([first, second])
        assert metadata == example.given.metadata


def test_an_example_is_readable() -> None:
    record = Record("1", {"m": "x"}, b"raw", {"id": 1}, None, "update")
    text = example_text(Example("t", {"a": "b"}, record, DROP))
    assert text.given == '{"operation": "update", "metadata": {"m": "x"}, "key": {"id": 1}, "after": "raw"}'
    assert text.gives == ("dropped",)
    assert example_text(Example("t", {}, record, "a.code")).gives == ("nacked: a.code",)

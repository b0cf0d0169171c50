from __future__ import annotations

from typing import Any

import pytest
from dagster._utils.schedules import is_valid_cron_string
from pydantic import TypeAdapter, ValidationError

from conduit_dagster.config.scalars import (
    ByteSize,
    Duration,
    PositiveDuration,
    Regex,
    ServerDuration,
    SettingText,
    cron_problem,
)

# pyright: reportUnknownParameterType=false


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h30m", 5400),
        ("30s", 30),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0", 0),
        ("2us", 2e-6),
        ("1µs", 1e-6),
        (3, 3),
    ],
)
def test_duration(text: Any, seconds: float) -> None:
    assert TypeAdapter(Duration).validate_python(text) == seconds


@pytest.mark.parametrize(
    "text", ["30", "", "1d", "5x", "1h 30m", "1h!30m", "-1s", "s", "9" * 400 + "h", "²s", None, True]
)
def test_no_duration(text: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


def test_what_a_server_can_not_count_is_too_long() -> None:
    adapter = TypeAdapter(ServerDuration)
    assert adapter.validate_python("576h") * 1000 < 2**31
    with pytest.raises(ValidationError, match="the duration is too long"):
        adapter.validate_python("577h")


def test_zero_is_not_positive() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PositiveDuration).validate_python("0s")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MB", 128_000_000),
        ("64MiB", 67_108_864),
        ("1GB", 10**9),
        ("1000", 1000),
        (1000, 1000),
        ("1.5kb", 1500),
        ("2 KiB", 2048),
        ("10B", 10),
        ("1TiB", 2**40),
    ],
)
def test_size(text: Any, size: int) -> None:
    assert TypeAdapter(ByteSize).validate_python(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "0", "1XB", "1e9", "9" * 5000, "\u0661"])
def test_no_size(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ByteSize).validate_python(text)


def test_regex_is_re2() -> None:
    """Patterns that Python's engine accepts and RE2 does not would hang or fail on records."""
    assert TypeAdapter(Regex).validate_python("^a.*(b|c)$") == "^a.*(b|c)$"
    for pattern in ("(", "a(?=b)", r"(a)\1", "\ud800"):
        with pytest.raises(ValidationError):
            TypeAdapter(Regex).validate_python(pattern)


def test_settings_keep_the_spelling_of_python_values_as_yaml_has_it() -> None:
    adapter = TypeAdapter(SettingText)
    assert [adapter.validate_python(value) for value in (5, True, None, "x")] == ["5", "true", "", "x"]


@pytest.mark.parametrize(
    "text",
    [
        "* * * * *",
        "*/5 0-6 1,15 jan-mar MON-FRI",
        "@daily",
        "0 0 L * *",
        "0 0 29 2 *",
        "0 0 31 3 mon",
        "5/10 * * 1/3 *",
        "0 0 * * fri#2",
    ],
)
def test_cron(text: str) -> None:
    assert cron_problem(text) is None
    assert is_valid_cron_string(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has 0 fields, not 5"),
        ("* * * *", "it has 4 fields, not 5"),
        ("60 * * * *", "minute, 0-59: '60' is no value, range or step"),
        ("* 24 * * *", "hour, 0-23: '24' is no value, range or step"),
        ("* * 0 * *", "day of the month, 1-31: '0' is no value, range or step"),
        ("* * * 13 *", "month, 1-12: '13' is no value, range or step"),
        ("* * * * 8", "day of the week, 0-7: '8' is no value, range or step"),
        ("*/0 * * * *", "minute, 0-59: '*/0' is no value, range or step"),
        ("a * * * *", "minute, 0-59: 'a' is no value, range or step"),
        ("1,,2 * * * *", "minute, 0-59: '1,,2' is no value, range or step"),
        ("r * * * *", "minute, 0-59: 'r' is no value, range or step"),
        ("0 0 31 2 mon", "no month has that day"),
        ("@often", "it is not a cron expression"),
        ("@daily ", "it is not a cron expression"),
        ("0 0 31 2,4 *", "no month has that day"),
    ],
)
def test_no_cron(text: str, problem: str) -> None:
    assert cron_problem(text) == problem

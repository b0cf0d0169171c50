"""Scalar values of a pipeline file: durations, sizes, ids, regular and cron expressions, setting texts."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import durationpy
import re2
from pydantic import AfterValidator, BeforeValidator, Field

from conduit_dagster.config.findings import refuse
from conduit_dagster.reference_syntax import ReferenceSyntaxError, read_reference

ID_BYTES = 128
CONNECTOR_ID_BYTES = 256
"""Limit including the pipeline's id and the colon before it, as Conduit stores it."""
DESCRIPTION_BYTES = 8192
RESERVED_IDS = frozenset({"acks", "dead_letters"})

_GO_DURATION = re.compile(r"[+-]?(?:0|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)")
_DAYS = re.compile(r"([0-9]{1,6})d(.*)")
_ID = re.compile(r"[A-Za-z0-9\-_:.]*")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_EMAIL = re.compile(r"[A-Za-z0-9._%+\-]+@[A-Za-z0-9.\-]+\.[A-Z|a-z]{2,7}")
_CRON_FIELDS = ("minute, 0-59", "hour, 0-23", "day of the month, 1-31", "month, 1-12", "day of the week, 0-7")
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


def parse_duration(value: Any) -> float:
    """Return a Go duration (``1h30m``, ``500ms``) in seconds; a number set in Python is already in seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    expected = "a duration such as 500ms, 30s or 1h30m"
    if not isinstance(value, str) or not _GO_DURATION.fullmatch(value.strip()):
        is_number = isinstance(value, str) and re.fullmatch(r"[0-9.]+", value) is not None
        fix = f"add a unit: {value}s" if is_number else None
        raise refuse("not a duration", expected=expected, fix=fix)
    try:
        return durationpy.from_str(value.strip()).total_seconds()
    except ValueError as error:
        raise refuse("this duration is out of range", expected=expected) from error


def parse_age(value: Any) -> float:
    """Return a duration that may begin with days (``90d``, ``1d12h``) in seconds.

    Not for Conduit's keys: Go has no days.
    """
    days = _DAYS.fullmatch(value.strip()) if isinstance(value, str) else None
    return parse_duration(value) if days is None else int(days[1]) * 86_400 + parse_duration(days[2] or "0")


def parse_size(value: Any) -> int:
    """Return a number of bytes: ``128MB`` is 128,000,000, ``64MiB`` is 67,108,864, a plain number is bytes."""
    match = _SIZE.fullmatch(str(value).strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or len(match[1]) > 20:
        raise refuse("not a size", expected="a number of bytes such as 128MB, 64MiB or 1000000")
    size = float(match[1]) * unit if "." in match[1] else int(match[1]) * unit
    return int(size)


def _not_negative(seconds: float) -> float:
    if seconds < 0 or not math.isfinite(seconds):
        raise refuse("the duration is negative", expected="a duration of 0s or more")
    return seconds


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise refuse("the duration is zero", expected="a duration longer than 0s")
    return seconds


def _in_32_bits(seconds: float) -> float:
    if seconds > 24 * 86_400:
        raise refuse("the duration is too long", expected="a duration of at most 576h")
    return seconds


def _is_reference(text: str) -> str:
    try:
        read_reference(text)
    except ReferenceSyntaxError as error:
        raise refuse(str(error), expected="a field of the record, such as .Payload.After.ssn") from error
    return text


def limited(text: str, limit: int, what: str) -> str:
    """Refuse a text of more than ``limit`` bytes of UTF-8 (Conduit counts bytes, not characters)."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        message = f"the {what} is {size} bytes long, the limit is {limit}"
        raise refuse(message, code="config.field_too_long", expected=f"at most {limit} bytes")
    return text


def _characters(text: str) -> str:
    if not _ID.fullmatch(text):
        fix = re.sub(r"[^A-Za-z0-9\-_:.]", "-", text)[:ID_BYTES]
        message, expected = "the id holds a character that is not allowed", "letters, digits and - _ : ."
        raise refuse(message, expected=expected, fix=f"for example {fix}")
    return text


def _not_reserved(text: str) -> str:
    if text in RESERVED_IDS:
        message = "this id is reserved: an asset of every pipeline has that name"
        fix = "choose another id"
        raise refuse(message, code="config.id_reserved", expected="neither acks nor dead_letters", fix=fix)
    return text


def _is_owner(text: str) -> str:
    # like Dagster's check of asset owners: an owner that Dagster refuses would prevent the pipeline's assets from
    # loading
    if not _EMAIL.fullmatch(text) and not (text.startswith("team:") and text != "team:"):
        is_word = re.fullmatch(r"[\w\-]+", text) is not None
        fix = f"write team:{text}" if is_word else None
        raise refuse("this is no owner", expected="an e-mail address, or team: and a name", fix=fix)
    return text


def compile_regex(pattern: str) -> Any:
    """Compile an RE2 expression. Raises the error of :func:`refuse`."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        message, expected = f"not a regular expression: {text}", "RE2 syntax"
        raise refuse(message, expected=expected, fix="RE2 has no look-around and no back references") from error


def _compiles(pattern: str) -> str:
    compile_regex(pattern)
    return pattern


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list, without blanks around them and without empty ones."""
    return tuple(item for part in text.split(",") if (item := part.strip()))


def cron_problem(text: str) -> str | None:
    """Return why croniter or Dagster refuses a cron expression, or None. A date that never occurs is a problem too."""
    # imported here: most commands read no cron expression
    from croniter import CroniterBadDateError, CroniterError, croniter

    fields = text.split()
    if not text.startswith("@") and len(fields) != len(_CRON_FIELDS):
        return f"it has {len(fields)} fields, not {len(_CRON_FIELDS)}"
    for number, field in enumerate(fields if len(fields) > 1 else ()):
        # croniter draws a random value for `r`, a different one in each process
        if not _is_cron_field(" ".join([*"*" * number, field, *"*" * (4 - number)])) or "r" in field.lower().split(","):
            return f"{_CRON_FIELDS[number]}: {field[:20]!r} is no value, range or step"
    try:
        days, months = croniter.expand(text)[0][2:4]
        croniter(text).get_next()
    except CroniterBadDateError:
        return "no month has that day"
    except CroniterError:
        return "it is not a cron expression"
    # Dagster refuses these even if a day of the week would match too
    return "no month has that day" if months == [2] and days in ([30], [31]) else None


def _is_cron_field(text: str) -> bool:
    from croniter import CroniterError, croniter

    try:
        croniter.expand(text)
    except CroniterError:
        return False
    return True


def _is_cron(text: str) -> str:
    problem = cron_problem(text)
    if problem is not None:
        raise refuse(f"not a cron expression: {problem}", expected="five fields, such as 0 * * * *")
    return text


def _setting(value: Any) -> str:
    """Return a setting as text; numbers and booleans keep their spelling, an empty value becomes an empty text."""
    if isinstance(value, dict | list):
        fix = "a setting below another is written with a dot: sdk.record.format: template"
        if isinstance(value, list):
            fix = "write a list with commas, where the plugin takes one: a, b"
        raise refuse("a setting is a text, not a structure", expected="a text", fix=fix)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


Duration = Annotated[
    float,
    BeforeValidator(parse_duration, json_schema_input_type=str | float),
    AfterValidator(_not_negative),
    Field(json_schema_extra={"format": "go-duration"}),
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
ServerDuration = Annotated[Duration, AfterValidator(_in_32_bits)]
"""A duration that a client or a server counts in milliseconds of 32 bits."""
PositiveServerDuration = Annotated[PositiveDuration, AfterValidator(_in_32_bits)]
PositiveAge = Annotated[
    float,
    BeforeValidator(parse_age, json_schema_input_type=str | float),
    AfterValidator(_not_negative),
    AfterValidator(_positive),
    Field(json_schema_extra={"format": "age"}),
]
ByteSize = Annotated[
    int,
    BeforeValidator(parse_size, json_schema_input_type=str | int),
    Field(ge=1, json_schema_extra={"format": "byte-size"}),
]
PipelineId = Annotated[str, AfterValidator(lambda text: limited(text, ID_BYTES, "id")), AfterValidator(_characters)]
PipelineName = Annotated[str, AfterValidator(lambda text: limited(text, ID_BYTES, "name"))]
Description = Annotated[str, AfterValidator(lambda text: limited(text, DESCRIPTION_BYTES, "description"))]
ConnectorId = Annotated[str, AfterValidator(_characters), AfterValidator(_not_reserved)]
ConnectorName = Annotated[str, AfterValidator(lambda text: limited(text, CONNECTOR_ID_BYTES, "name"))]
Regex = Annotated[str, AfterValidator(_compiles), Field(json_schema_extra={"format": "regex"})]
Owner = Annotated[str, AfterValidator(_is_owner)]
FieldReference = Annotated[str, AfterValidator(_is_reference)]
Cron = Annotated[str, AfterValidator(_is_cron)]
SettingText = Annotated[str, BeforeValidator(_setting)]
Settings = dict[str, SettingText]

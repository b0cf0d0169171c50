"""What processors report as the origin of fields (``made_of``), compared with what they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import make
from processors.test_examples import CASES

from conduit_dagster.expressions import expression_fields, template_fields
from conduit_dagster.record import Record
from conduit_dagster.sdk import Example
from conduit_dagster.testing.conformance.processors import check_made_of


@pytest.mark.parametrize(("name", "example"), CASES)
def test_examples_are_as_told(name: str, example: Example) -> None:
    check_made_of(make(name, dict(example.settings)), example.given)


NAMES = st.sampled_from("abcde")
DOCUMENTS = st.dictionaries(NAMES, st.integers(0, 9) | st.text("xy", max_size=2), min_size=1)
PAIRS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4)
SUBJECTS = st.one_of(
    PAIRS.map(lambda pairs: ("field.rename", {"mapping": ",".join(f".Payload.After.{a}:{b}" for a, b in pairs)})),
    PAIRS.map(lambda pairs: ("rename", {f"field_map.{a}": b for a, b in pairs})),
    NAMES.map(lambda name: ("field.exclude", {"fields": f".Payload.After.{name}"})),
    st.lists(NAMES, min_size=1).map(lambda names: ("pick", {"fields": ",".join(names)})),
    st.lists(NAMES, min_size=1).map(lambda names: ("omit", {"fields": ",".join(names)})),
    st.tuples(NAMES, NAMES).map(
        lambda two: ("field.set", {"field": f".Payload.After.{two[0]}", "value": f"{{{{ .Payload.After.{two[1]} }}}}!"})
    ),
    st.tuples(NAMES, NAMES, NAMES).map(
        lambda three: (
            "field.set",
            {"field": f".Payload.After.{three[0]}", "expression": f"str(after.{three[1]}) + str(after['{three[2]}'])"},
        )
    ),
    NAMES.map(lambda name: ("field.convert", {"field": f".Payload.After.{name}", "type": "string"})),
)


@given(SUBJECTS, DOCUMENTS)
def test_what_is_told_is_true(subject: tuple[str, dict[str, str]], document: dict[str, Any]) -> None:
    check_made_of(make(*subject), Record("1", {}, document))


def test_something_is_compared() -> None:
    """The check can fail: fields of others are compared, and a wrong answer is found."""
    subject = make("field.rename", {"mapping": ".Payload.After.a:b"})
    record = Record("1", {}, {"a": 1, "c": 2})
    assert check_made_of(subject, record) == 2
    told: Callable[[str], Any] = lambda field: ("c",)  # noqa: E731
    subject.made_of = told
    with pytest.raises(AssertionError):
        check_made_of(subject, record)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("plain", set()),
        ("{{ .Payload.After.name }}-{{ .Payload.After.id }}", {"name", "id"}),
        ("{{ .Operation }}", set()),
        ('{{ index .Metadata "opencdc.collection" }}', None),
        ("{{ .Metadata.x }}", None),
        ('{{ "}}" | printf "%s" .Payload.After.ssn }}', None),
        ('{{ printf ".Payload.After.x %s" .Payload.After.a.b }}', {"a"}),
        ("{{ if eq .Payload.After.a 1 }}{{ .Payload.After.b }}{{ end }}", {"a", "b"}),
        ('{{ index .Payload.After "name" }}', None),
        ("{{ range $k, $v := .Payload.After }}{{ $v }}{{ end }}", None),
        ("{{ with .Payload.After.a }}{{ . }}{{ end }}", None),
        ("{{ toJson .Payload.After }}", None),
        ("{{ .Key.id }}", None),
        ("{{ .Payload.Before.a }}", None),
        ("{{ .Position }}", None),
    ],
)
def test_fields_of_a_template(text: str, fields: set[str] | None) -> None:
    assert template_fields(text) == fields


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("1 + 2", set()),
        ("after.a + after['b'] * len(operation)", {"a", "b"}),
        ("metadata['c']", None),
        ("after.a.b.c if operation == 'create' else after.d", {"a", "d"}),
        ("after.get('a')", None),
        ("len(after)", None),
        ("after[metadata['x']]", None),
        ("key.id", None),
        ("before.a", None),
        ("[x for x in after]", None),
        ("no (python", None),
    ],
)
def test_fields_of_an_expression(text: str, fields: set[str] | None) -> None:
    assert expression_fields(text) == fields


def test_a_processor_that_says_nothing_is_not_trusted() -> None:
    subject = make("custom.javascript", {"script": "function process(rec) { return rec; }"})
    assert subject.made_of("a") is None
    assert json.dumps(make("json.decode", {"field": ".Payload.After"}).made_of("a")) == '["a"]'

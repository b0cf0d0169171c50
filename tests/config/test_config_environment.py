from __future__ import annotations

import pytest

from conduit_dagster.config.references import expand, offset_of

ENV = {"A": "1", "LONG_NAME": "two", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "1"),
        ("$A", "1"),
        ("$A/$LONG_NAME", "1/two"),
        ("x${A}y", "x1y"),
        ("$$A", "$A"),
        ("$${A}", "${A}"),
        ("$$$A", "$1"),
        ("[${EMPTY}]", "[]"),
        ("costs 5$", "costs 5$"),
        ("$ 5, $1, $.x, $-", "$ 5, $1, $.x, $-"),
        ("no reference", "no reference"),
    ],
)
def test_expand(text: str, expected: str) -> None:
    expanded = expand(text, ENV)
    assert (expanded.text, expanded.bad) == (expected, ())


def test_value_is_not_expanded_again() -> None:
    assert expand("$A", {"A": "$A"}).text == "$A"


@pytest.mark.parametrize(
    ("text", "name"),
    [("$NOPE", "NOPE"), ("${NOPE}", "NOPE"), ("${A:-1}", "A:-1"), ("${}", None), ("${A", None)],
)
def test_bad_reference_stays_as_written(text: str, name: str | None) -> None:
    expanded = expand(f"$$ {text}", ENV)
    assert expanded.text == f"$ {text}"
    assert [(bad.ordinal, bad.name) for bad in expanded.bad] == [(1, name)]
    assert offset_of(f"'$$ {text}'", 1) == 4


def test_go_template_variable_is_a_reference() -> None:
    """As in Conduit; two dollars escape it."""
    assert [bad.name for bad in expand("{{ $x }}", {}).bad] == ["x"]
    assert expand("{{ $$x }}", {}).text == "{{ $x }}"

"""Go templates print and compare as Go does.

The expected texts come from Go 1.26 with sprig 3.3 and from Conduit's golden files; where ours differ on
purpose a test says so.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from conduit_dagster.expressions import (
    Clock,
    EvaluationError,
    ExpressionError,
    compile_condition,
    compile_template,
    format_go,
)
from conduit_dagster.record import Data, Record, encode

CLOCK = Clock()
DOCUMENT: dict[str, Any] = {
    "id": 3,
    "name": "Ana",
    "city": None,
    "f": 1.5,
    "t": True,
    "zero": 0,
    "e": "",
    "tags": ["a", 1, None, {"k": 2}],
    "addr": {"zip": "1", "geo": {"lat": 45.8}},
    "empty": {},
    "none": [],
    "big": 12345678901234567890,
}


def record(after: Data = None, key: Data = b"k1") -> Record:
    return Record("pos-1", {"team": "blue", "opencdc.collection": "orders"}, after, key, None, "update")


RECORD = record(DOCUMENT)


def text(template: str, given: Record = RECORD) -> str:
    return compile_template(template.replace("$A", ".Payload.After"))(given)


def condition(template: str, given: Record = RECORD) -> bool:
    return compile_condition(template.replace("$A", ".Payload.After"), CLOCK)(given)


ACTIONS = (
    "a{b}'\"\\ \n%s", "é", "{{ $A.id }}", "{{ $A.name }}", "{{ $A.x }}", "{{ $A.tags }}", "{{ $A.t }}", "{{ $A.f }}",
    "{{ $A.big }}", "{{ $A.city }}", "{{ $A.addr.zip }}", "{{ $A.Bytes }}", "{{ .Key }}", "{{ len $A.name }}",
    "{{ .Payload.Before.x }}", "{{ $A.e }}", "{{ $A }}",
)  # fmt: skip


@for_all(st.lists(st.sampled_from(ACTIONS), max_size=6), st.sampled_from([DOCUMENT, b"raw", None]))
def test_a_template_gives_what_its_actions_give_alone(actions: list[str], after: Any) -> None:
    given = record(after)
    try:
        expected = "".join(text(action, given) for action in actions)
    except EvaluationError as error:
        with pytest.raises(EvaluationError) as raised:
            text("".join(actions), given)
        assert str(raised.value) == str(error)
        return
    assert text("".join(actions), given) == expected


GO_NESTED = (
    '[   a    1 <nil> map[   k:   2]]|[a  1  <nil> map[k :2 ]]|map["lat":%!q(float64=45.8)]|'
    "map[%!d(string=lat):%!d(float64=45.8)]"
)
GO_MISFITS = "%!d(string=    x)|%!d(string=0000x)|%!d(float64=+1.5)|%!f(string=x)|%!s(bool=true)"
GO: list[tuple[str, str]] = [
    ("{{ $A.name }}-{{ $A.id }}", "Ana-3"),
    ("{{ $A.x }} {{ $A.x.y }} {{ $A.city }}", "<no value> <no value> <no value>"),
    ("{{ $A.tags }}", "[a 1 <nil> map[k:2]]"),
    ("{{ $A.addr }}", "map[geo:map[lat:45.8] zip:1]"),
    ("{{ $A.addr.geo.lat }}", "45.8"),
    ("{{ $A.empty }} {{ $A.none }}", "map[] []"),
    ("{{ .Payload.Before }}", "<nil>"),
    ("{{ .Metadata.team }} {{ .Metadata.nope }} {{ .Metadata.nope.x }}", "blue <no value> <no value>"),
    ('{{ index .Metadata "nope" }}|{{ index .Metadata "opencdc.collection" }}', "|orders"),
    ("{{ .Metadata }}", "map[opencdc.collection:orders team:blue]"),
    ("{{ .Operation }} {{ .Operation.String }} {{ .Position }}", "update update pos-1"),
    (
        '{{ printf "%s" .Key }} {{ printf "%q" .Key }} {{ len .Key }} {{ printf "%s" .Key.Bytes }}',
        'k1 "k1" 2 k1',
    ),
    (
        '[{{ printf "%s" .Payload.Before }}] {{ printf "%q" .Payload.Before }} {{ len .Payload.Before }} '
        '[{{ printf "%s" .Payload.Before.Bytes }}] {{ gt (len .Payload.Before) 0 }}',
        '[] "" 0 [] false',
    ),
    ('{{ eq $A.x "a" }} {{ eq $A.city "a" }} {{ ne $A.x "a" }}', "false false true"),
    ("{{ eq $A.x nil }} {{ eq $A.city $A.x }} {{ eq $A.addr nil }}", "true true false"),
    ('{{ eq $A.id 3.0 }} {{ eq $A.id 1.0 3.0 }} {{ eq $A.name "B" "Ana" }}', "true true true"),
    ("{{ le $A.id 3.0 }} {{ ge $A.id 4.0 }} {{ gt $A.id 2.5 }}", "true false true"),
    ('{{ lt $A.name "B" }} {{ eq true true }}', "true true"),
    ('{{ and 1 0 2 }} {{ or 0 "" "x" }} {{ and "" 3 }} {{ or 0 "" }}|', "0 x  |"),
    ("{{ and $A.x $A.id }} {{ or $A.x $A.id }}", "<no value> 3"),
    ("{{ and false $A.name.boom }} {{ or true $A.name.boom }}", "false true"),
    ("{{ not $A.x }} {{ not $A.zero }} {{ not $A.none }} {{ not $A.name }}", "true true true false"),
    ('{{ index $A "id" }} {{ index $A "nope" }} {{ index $A "addr" "zip" }}', "3 <no value> 1"),
    ("{{ index $A.tags 0 }} {{ index $A.tags 3 }}", "a map[k:2]"),
    ('{{ len $A.name }} {{ len $A.tags }} {{ len "é" }}', "3 4 2"),
    ('{{ printf "%v|%s" $A.x $A.x }}', "<nil>|%!s(<nil>)"),
    (
        '{{ printf "%f %.2f %8.3f|%-8.1f|%08.2f|%+.1f" 1.5 1.5 1.5 1.5 1.5 1.5 }}',
        "1.500000 1.50    1.500|1.5     |00001.50|+1.5",
    ),
    ('{{ printf "%5s|%-5s|%05d|%5d|%-5d|%+d" "ab" "ab" 42 42 42 42 }}', "   ab|ab   |00042|   42|42   |+42"),
    ('{{ printf "%5v|%-5v" 3 true }} {{ printf "100%%" }} {{ printf "%t" true }}', "    3|true  100% true"),
    ('{{ printf "%s" $A.tags }}', "[a %!s(float64=1) <nil> map[k:%!s(float64=2)]]"),
    (
        '{{ printf "%d" "x" }} {{ printf "%d" 1.5 }} {{ printf "%s" true }}',
        "%!d(string=x) %!d(float64=1.5) %!s(bool=true)",
    ),
    ('{{ printf "%05s|%05q|%05t|%-05s|%05v" "ab" "a" true "ab" "ab" }}', '000ab|00"a"|0true|ab   |000ab'),
    ('{{ printf "%05d|%+05d|%+v|%+5.1f" -42 42 42 1.5 }}', "-0042|+0042|42| +1.5"),
    ('{{ printf "%4v|%-2v|%q|%d" $A.tags $A.tags $A.addr.geo $A.addr.geo }}', GO_NESTED),
    ('{{ printf "%5d|%05d|%+d|%.1f|%4s" "x" "x" 1.5 "xyz" true }}', GO_MISFITS),
    ('{{ print 1 2 "a" "b" 3 4 }} {{ print $A.x $A.city }} {{ print nil }}', "1 2ab3 4 <nil> <nil> <nil>"),
    (
        '{{ hasPrefix "An" $A.name }} {{ hasSuffix "na" $A.name }} {{ contains "x" $A.name }}',
        "true true false",
    ),
    (
        "{{ toString $A.x }} {{ toString $A.id }} {{ toString true }} {{ toString $A.tags }}",
        "<nil> 3 true [a 1 <nil> map[k:2]]",
    ),
    (
        '{{ toJson $A.x }} {{ toJson "a" }} {{ toJson .Key }} {{ toJson .Payload.Before }}',
        'null "a" "azE=" null',
    ),
    ('{{ upper $A.name }} {{ lower "ABC" }} {{ trim "  a " }}', "ANA abc a"),
    ('{{ $A.name | upper }}|{{ $A.city | default "-" }}|{{ len $A.addr }}', "ANA|-|2"),
    (
        '{{ default "-" $A.e }}{{ default "-" $A.zero }}{{ default "-" $A.none }}{{ default "-" $A.id }}',
        "---3",
    ),
    ('{{ coalesce $A.x $A.e "q" }} {{ coalesce $A.x }}', "q <no value>"),
    ('{{ quote "a" 1 nil "b\\"" }}', '"a" "1" "b\\""'),
    ('{{ replace "a" "b" "banana" }} {{ "banana" | replace "a" "" }}', "bbnbnb bnn"),
    (
        '{{ trimPrefix "a" "ab" }} {{ trimSuffix "b" "ab" }} {{ ternary "a" "b" true }} {{ empty $A.x }}',
        "b a a true",
    ),
    ('{{ $A.name | upper | printf "%s-%s" "x" }}', "x-ANA"),
    (
        '{{ 1.0 }} {{ "a\\n\\"" }} {{ `r\\n` }} {{ 0x1F }} {{ 1_0 }} {{ -3 }} {{ 0b11 }} {{ 017 }}',
        '1 a\n" r\\n 31 10 -3 3 15',
    ),
    ('{{ "\\u00e9\\x41\\101\\t\\\\\\xc3\\xa9" }}', "éAA\t\\é"),
    (" a  {{- 1 -}}  b ", " a1b "),
    (" a {{-1}} b", " a -1 b"),
    ("{{ 1   -}}  {{-   2 }}", "12"),
    ("{{/* c */}}x{{- /* d */ -}} y", "xy"),
    ("{{ 1\n}}", "1"),
    ('{{ ($A.city).x }} {{ (index $A "nope").x.y }} {{ hasKey $A.x "y" }}', "<no value> <no value> false"),
    ("{{ ( .Metadata ).team }} {{ (eq 1 1) }} {{ true | not }}", "blue true false"),
    (
        "{{ 1e6 }} {{ 1e20 }} {{ 123456789.0 }} {{ 0.0001 }} {{ 0.00001 }}",
        "1e+06 1e+20 1.23456789e+08 0.0001 1e-05",
    ),
    ("no action", "no action"),
]


@pytest.mark.parametrize(("template", "expected"), GO)
def test_prints_what_go_prints(template: str, expected: str) -> None:
    assert text(template) == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ .Key }} {{ toString .Key }}", "k1 k1"),
        ("{{ eq $A.id 3 }} {{ lt 1 1.5 }} {{ gt (len $A.tags) 3.0 }}", "true true true"),
        ("{{ $A.big }} {{ 12345678901234567890 }}", "12345678901234567890 12345678901234567890"),
        ('{{ printf "%d %.1f" $A.id $A.id }}', "3 3.0"),
        (
            '{{ eq .Operation "update" }} {{ eq .Position "pos-1" }} {{ upper .Operation }}',
            "true true UPDATE",
        ),
    ],
)
def test_ours_do_more_where_go_fails(template: str, expected: str) -> None:
    """Raw data is its text, integers are exact and compare with floats, operation and position are texts."""
    assert text(template) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ $A.city.y }}", "cannot resolve field 'y'"),
        ("{{ $A.name.y }}", "text has no fields"),
        ("{{ .Payload.Before.x }}", "cannot resolve field 'x' in .Payload.Before"),
        ("{{ .Key.x }}", ".Key is raw, not a document"),
        ("{{ (index $A.tags 0).y }}", "text has no fields"),
        ('{{ gt 3 "x" }}', "incompatible types for comparison: number and string"),
        ('{{ gt $A.id "x" }}', "incompatible types for comparison: number and string"),
        ("{{ eq $A.name 3.0 }}", "incompatible types"),
        ('{{ eq $A.t "true" }}', "incompatible types"),
        ("{{ eq $A.t 1 }}", "incompatible types"),
        ('{{ eq .Key "k1" }}', "incompatible types"),
        ("{{ eq $A.tags $A.tags }}", "cannot be compared"),
        ("{{ lt $A.x 3.0 }}", "incompatible types"),
        ("{{ lt $A.t true }}", "no order"),
        ("{{ index $A.tags 9 }}", "out of range"),
        ("{{ index $A.tags -1 }}", "out of range"),
        ('{{ index $A.x "k" }}', "index of nothing"),
        ("{{ index $A 1 }}", "indexed with text"),
        ("{{ len $A.x }}", "len of nothing"),
        ("{{ len $A.id }}", "len of a number"),
        ('{{ hasPrefix "An" $A.x }}', "hasPrefix needs text, got nothing"),
        ("{{ upper $A.id }}", "upper needs text"),
        ("{{ upper .Key }}", 'write printf "%s"'),
    ],
)
def test_fails_where_go_fails(template: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        text(template)


def test_raw_payload() -> None:
    raw = record(b"xyz")
    assert text("{{ $A }}", raw) == "xyz"
    assert text("{{ toJson $A }}", raw) == '"eHl6"'
    with pytest.raises(EvaluationError, match=r"\.Payload\.After is raw, not a document"):
        text("{{ $A.x }}", raw)
    with pytest.raises(EvaluationError, match="not UTF-8"):
        text("{{ $A }}", record(b"\xff"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{{ eq $A.city "Lyon" }}', [False, False, True, True]),
        (
            '{{ or (and (eq $A.city "Lyon") (not (eq $A.name ""))) (eq $A.name "Ana") }}',
            [True, False, True, False],
        ),
        ('{{ hasPrefix "Ly" (toString $A.city) }}', [False, False, True, True]),
        ("{{ eq $A.id 3.0 }}", [False, False, True, False]),
        ("{{ or (eq $A.id 2.0) (eq $A.id 4.0) (eq $A.id 6.0) }}", [False, True, False, True]),
        ("{{ $A.extra }}", [None, None, True, None]),
        ("{{ $A.name }}", [None, None, None, None]),
        ('{{ gt $A.id "x" }}', [None, None, None, None]),
    ],
)
def test_conditions_of_conduits_golden_files(template: str, expected: list[bool | None]) -> None:
    """``None`` is a nack."""
    documents: list[dict[str, Any]] = [
        {"id": 1, "name": "Ana", "city": "Zagreb"},
        {"id": 2, "name": "Bo", "city": None},
        {"id": 3, "name": "Cy", "city": "Lyon", "extra": True},
        {"id": 4, "name": "", "city": "Lyon"},
    ]
    compiled = compile_condition(template.replace("$A", ".Payload.After"), CLOCK)
    for document, wanted in zip(documents, expected, strict=True):
        if wanted is None:
            with pytest.raises(EvaluationError):
                compiled(record(document))
        else:
            assert compiled(record(document)) is wanted


def test_a_condition_is_read_as_go_reads_a_boolean() -> None:
    for word in ("1", "t", "T", "true", "TRUE", "True"):
        assert condition('{{ "' + word + '" }}') is True
    for word in ("0", "f", "F", "false", "FALSE", "False"):
        assert condition(word + "{{ $A.e }}") is False
    assert condition("{{ $A.id | eq 3.0 }}{{/* said */}}") is True
    assert condition("\n{{- true -}}\n") is True
    for wrong in ("{{ $A.e }}", '{{ "yes" }}', "{{ $A.name }}"):
        with pytest.raises(EvaluationError, match="which is not a boolean"):
            condition(wrong)
    with pytest.raises(EvaluationError, match='the template gave "<no value>", which is not a boolean'):
        condition("{{ $A.missing }}")


@pytest.mark.parametrize(
    "template", [" {{ true }}", "{{ true }}\n", "is {{ true }}", "{{ true }} {{/* said */}}", "yes{{ $A.e }}"]
)
def test_a_condition_that_no_record_can_fulfil_or_fail_is_refused(template: str) -> None:
    """Conduit nacks every record. A line end comes from a block of YAML."""
    with pytest.raises(ExpressionError, match="the output is never a boolean") as caught:
        condition(template)
    assert "{{- … -}}" in (caught.value.fix or "")


def test_a_whole_record_or_payload_is_printed_as_json() -> None:
    assert text("{{ toJson . }}") == encode(RECORD).decode()
    assert msgspec.json.decode(text("{{ toJson .Payload }}")) == {"before": None, "after": DOCUMENT}
    assert text("{{ toJson $A }}") == msgspec.json.encode(DOCUMENT).decode()


def test_a_compiled_template_says_what_it_is() -> None:
    """Callers take shortcuts by ``literal`` and ``json_of``."""
    assert compile_template("plain").literal == "plain"
    assert compile_template("").literal == ""
    assert compile_template("a{{/* c */}}b").literal == "ab"
    assert compile_template("{{ toJson .Payload.After }}").json_of == "after"
    assert compile_template("{{ .Key | toJson }}").json_of == "key"
    assert compile_template("{{ toJson . }}").json_of == "record"
    for template in ("{{ toJson .Payload.After }} ", "{{ toJson .Payload.After.x }}", "{{ .Payload.After }}"):
        compiled = compile_template(template)
        assert (compiled.literal, compiled.json_of) == (None, None)


def test_names_are_the_parts_it_looks_at() -> None:
    names = compile_template('{{ .Payload.After.a }}{{ index .Metadata "k" }}{{ .Position }}').names
    assert names == {"after", "metadata", "position"}
    assert compile_condition("{{ eq .Payload.Before.a .Key.b }}", CLOCK).names == {"before", "key"}
    assert len(compile_template("{{ toJson . }}").names) == 6


@pytest.mark.parametrize(
    ("template", "column", "message", "fix"),
    [
        ("x {{ range .Payload.After.tags }}", 5, "`range` is not translated", "condition:"),
        ("{{ if true }}a{{ end }}", 3, "`if` is not translated", "expression:"),
        ("{{ with .Key }}", 3, "`with`", "expression:"),
        ('{{ define "a" }}', 3, "`define`", "expression:"),
        ("{{ $x := 1 }}", 3, "variable", "expression:"),
        ("{{ $.Key }}", 3, "variable", ".Payload.After.x"),
        ("{{ eq .Key (nosuch 1) }}", 12, "the function `nosuch`", "expression:"),
        ("{{ uper .Key }}", 3, "the function `uper`", "`upper`"),
        ("{{ .Paylod.After }}", 3, "`.Paylod`", "`Payload`"),
        ("{{ .Payload.Aftr.x }}", 11, "`.Aftr`", "`After`"),
        ("{{ .city }}", 3, "`.city`", ".Payload.After.city"),
        ("{{ . }}", 3, "Go structure", "toJson"),
        ("{{ .Payload }}", 3, "Go structure", "toJson"),
        ("{{ .Metadata.GetCollection }}", 12, "`.GetCollection`", "opencdc.collection"),
        ("{{ .Payload.After.a-b }}", 19, "unexpected '-'", "index .Payload.After"),
        ("{{ .Payload.After.IMDB Rating }}", 23, "only a function takes arguments", "index .Payload.After"),
        ("é {{ eq 1 }}", 5, "`eq` takes at least 2", None),
        ("{{ not 1 2 }}", 3, "`not` takes 1", None),
        ('{{ printf "%x" 1 }}', 10, "`%x` is not translated", "%s"),
        ('{{ printf "%+q" "é" }}', 10, "`%+q` is not translated", "%s"),
        ('{{ printf "%s" }}', 10, "takes 1 values and is given 0", None),
        ("{{ printf .Key }}", 3, "literal", None),
        ("a\n{{ 1", 2, "not closed", "}}"),
        ('{{ "a', 3, "not closed", None),
        ("{{ (1 }}", 3, "parenthesis", None),
        ("{{ 1) }}", 4, "unexpected ')'", None),
        ("{{ }}", 0, "empty", None),
        ("{{ 3 | 4 }}", 7, "after `|` comes a function", None),
        ("{{ nil }}", 3, "nil", None),
        ("{{ 'a' }}", 3, "single quotes", '"a"'),
        ('{{ "\\q" }}', 4, "escape", None),
        ("{{ 09 }}", 3, "not a number", None),
        ("{{ .Payload..After }}", 11, "name is missing", None),
    ],
)
def test_what_is_not_translated_is_refused_by_name(template: str, column: int, message: str, fix: str | None) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template(template)
    assert caught.value.column == column
    assert message in caught.value.message
    assert fix is None or fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (-0.0, "-0"),
        (1e21, "1e+21"),
        (999999.5, "999999.5"),
        (1234567.5, "1.2345675e+06"),
        (1e-7, "1e-07"),
        (1.5e300, "1.5e+300"),
        (12345678901234567890, "12345678901234567890"),
        (True, "true"),
        (None, "<nil>"),
        ("s", "s"),
        ([1, "a"], "[1 a]"),
        ({"b": 1, "a": 2}, "map[a:2 b:1]"),
        ({"b": [None, {"x": 1.0}]}, "map[b:[<nil> map[x:1]]]"),
    ],
)
def test_format_go(value: Any, expected: str) -> None:
    assert format_go(value) == expected


@pytest.mark.parametrize(
    ("text", "holds"),
    [("true", True), ("T", True), ("1", True), ("True", True), ("false", False), ("F", False), ("0", False)],
)
def test_a_condition_may_be_one_of_go_s_booleans(text: str, holds: bool) -> None:
    """Conduit accepts them without braces, like any template."""
    assert compile_condition(text, CLOCK)(Record("1", {})) is holds

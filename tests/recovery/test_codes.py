"""What codes mean, and that the catalogue of names matches the source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest
from lab.modules import modules

from conduit_dagster.recovery.codes import FATAL_NAMES, LOSSES, TRANSIENT_NAMES, class_of, is_code


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ((400, 401, 403, 404, 410, 422, 499), "fatal"),
        ((408, 409, 423, 425, 429), "transient"),
        ((500, 502, 503, 504, 599), "transient"),
        ((1000, 1999), "transient"),
        ((2000, 2999), "fatal"),
        ((0, 200, 302, 399, 600, 999, 3000, -422, 10**30), None),
        (("422", "0422"), "fatal"),
        (("503",), "transient"),
        (("42.2", "-422", " 422", "²²", "9" * 5000, ""), None),
        (("nacks.threshold_exceeded", "config.field_invalid", "plugin.unknown", "file.range_gone"), "fatal"),
        (("file.missing", "postgres.unreachable", "state.unreachable"), "transient"),
        (("mine.gone", "config", "file", "file.", "gone"), None),
        ((True, False), None),
    ],
)
def test_the_class_of_a_code(codes: tuple[int | str, ...], verdict: str | None) -> None:
    assert {class_of(code) for code in codes} == {verdict}


def test_what_may_be_a_code() -> None:
    assert all(is_code(code) for code in (0, 422, "422", "mine.gone", "a.b-c.d_1", "interrupted"))
    wrong = (None, True, 4.22, -1, "", " ", "two words", "a..b", ".a", "a.", "ä.b", "4x", b"a.b", [422], "a.b\n")
    assert not any(is_code(code) for code in wrong)


_OF_A_COMMAND = {"demo.counts_differ", "interrupted", "internal.error", "test.failed", "test.none"}
"""How the command line itself ends: no pipeline fails with them."""
_CLASSES = {"FatalError", "TransientError"}


def _raised() -> Iterator[tuple[str, str]]:
    """Each literal code in the source with the class that is raised with it."""
    for _, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for keyword in node.keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        yield str(keyword.value.value), node.func.id


def test_the_catalogue_agrees_with_what_the_source_raises() -> None:
    classes: dict[str, set[str]] = defaultdict(set)
    for code, kind in _raised():
        classes[code].add(kind)
    assert len(classes) > 50
    wrong = {
        code: kinds
        for code, kinds in classes.items()
        if ("FatalError" in kinds and class_of(code) == "transient")
        or ("TransientError" in kinds and class_of(code) == "fatal")
    }
    assert wrong == {}
    # a code that comes back as text must imply the class that it was raised with
    unknown = {code for code, kinds in classes.items() if len(kinds & _CLASSES) == 1 and class_of(code) is None}
    assert unknown == _OF_A_COMMAND


def test_every_name_of_the_catalogue_is_in_the_source() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for _, path in modules() if path.name != "codes.py")
    assert [name for name in sorted(FATAL_NAMES | TRANSIENT_NAMES) if f'"{name}"' not in text] == []
    assert not FATAL_NAMES & TRANSIENT_NAMES


def test_codes_of_lost_data_are_known() -> None:
    assert LOSSES <= FATAL_NAMES

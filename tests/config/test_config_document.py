from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from conduit_dagster.config.document import MAX_BYTES, Document, load_documents, read_source, source_of
from conduit_dagster.config.findings import Finding


def load(text: str, **env: str) -> tuple[list[Document], list[Finding]]:
    return load_documents(source_of(text, "f.yaml"), env)


def only(text: str) -> tuple[str, int, int]:
    documents, findings = load(text)
    (finding,) = findings + [finding for document in documents for finding in document.findings]
    assert finding.file == "f.yaml"
    assert finding.is_error
    return finding.code, finding.line, finding.column


def test_every_key_and_value_has_its_place() -> None:
    (document,), _ = load("a: 1\nb:\n  - c: 'x'\n    d/e: y\n")
    assert document.locate("/a") == (1, 4)
    assert document.locate("/b/0/c") == (3, 8)
    assert document.locate("/b/0/c", on_key=True) == (3, 5)
    assert document.locate("/b/0/d~1e") == (4, 10)


def test_what_was_not_written_is_found_at_what_encloses_it() -> None:
    (document,), _ = load("a:\n  b: 1\n")
    assert document.locate("/a/missing/deeper") == (2, 3)
    assert document.locate("/missing") == (1, 1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: abc > 1", (1, 8)),
        ("a: 'abc > 1'", (1, 9)),
        ('a: "abc > 1"', (1, 9)),
        ("a: |\n  abc > 1\n", (2, 7)),
    ],
)
def test_offset_into_a_text(text: str, place: tuple[int, int]) -> None:
    (document,), _ = load(text)
    assert document.locate("/a", offset=4) == place


def test_offset_into_a_later_line_of_a_block() -> None:
    (document,), _ = load("x: 0\na: |\n    one\n    two\n")
    assert document.locate("/a", offset=5) == (4, 6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3\n", ("config.parse_error", 2, 2)),
        ("a: 1\n\tb: 2\n", ("config.parse_error", 2, 1)),
        ("a: b: c\n", ("config.parse_error", 1, 5)),
        ("a: 1\nb: 'open\nc: 2\n", ("config.parse_error", 2, 4)),
        ("a: 1\na: 2\n", ("config.key_duplicate", 2, 1)),
        ("b:\n  c: 1\n  d: 1\n  c: 2\n", ("config.key_duplicate", 4, 3)),
        ("- a\n- b\n", ("config.parse_error", 1, 1)),
        ("# why\n\njust text\n", ("config.parse_error", 3, 1)),
        ("a: \x01\n", ("config.parse_error", 1, 4)),
        ("a: *nope\n", ("config.parse_error", 1, 4)),
        ("? [a]\n: b\n", ("config.parse_error", 1, 3)),
        ('a: "\\UFFFFFFFF"\n', ("config.parse_error", 1, 1)),
        ("[" * 5000, ("config.parse_error", 1, 1)),
        ("a: &a [*a]\n", ("config.alias_limit", 1, 1)),
        ("a: &a {<<: *a}\n", ("config.alias_limit", 1, 1)),
        ("a: {<<: 1}\n", ("config.parse_error", 1, 9)),
    ],
)
def test_bad_yaml_is_one_finding(text: str, expected: tuple[str, int, int]) -> None:
    assert only(text) == expected


def test_a_tab_is_named() -> None:
    _, (finding,) = load("a:\n\tb: 2\n")
    assert (finding.message, finding.fix) == ("a tab where YAML wants spaces", "indent with spaces")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("a: 1\nb:\n    c: 1\n   d: 2\n", (4, 4), "the same indentation"),
        ("a:\n  - x\n - y\n", (3, 2), "the same indentation"),
        ("a: {b: 'it's'}\n", (1, 12), "the quote that it begins with"),
        ("a: {b: 1 c: 2}\n", (1, 11), "a comma between items"),
        ("a: {cron: */5 * * * *}\n", (1, 11), "begins with * needs quotes"),
        ("a: * * * * *\n", (1, 5), "begins with * needs quotes"),
        ("a: @b\n", (1, 4), "put the text in quotes"),
        ("a: *nope\n", (1, 4), "define it before"),
        ("a:\n\u00a0 b: 1\n  c: 2\n", (2, 1), "plain spaces"),
    ],
)
def test_a_mistake_of_syntax_says_what_to_do(text: str, place: tuple[int, int], said: str) -> None:
    """It was the parser's own words alone, such as ``expected <block end>``."""
    _, (finding,) = load(text)
    assert (finding.code, finding.line, finding.column) == ("config.parse_error", *place)
    assert finding.fix is not None and said in finding.fix


@pytest.mark.parametrize("bad", ["a: [1\n", "- x\n", "a:\n\tb: 1\n", "b: 'open\n", "a: |\n  text\n b\n"])
def test_a_bad_document_does_not_discard_the_others(bad: str) -> None:
    documents, findings = load(f"a: 1\n---\n{bad}---\na: 3\n")
    assert [document.tree for document in documents] == [{"a": "1"}, {"a": "3"}]
    assert [(finding.code, finding.line >= 3) for finding in findings] == [("config.parse_error", True)]
    assert documents[1].locate("/a") == (4 + bad.count("\n"), 4)


def test_directives_comments_and_end_marks_between_documents() -> None:
    documents, findings = load("# one\n%YAML 1.2\n---\na: 1\n...\n# two\n%YAML 1.2\n---\na: 2\n...\n---\n# empty\n")
    assert findings == []
    assert [document.tree["a"] for document in documents] == ["1", "2"]
    assert documents[1].locate("/a") == (9, 4)


def test_marks_of_windows_and_of_editors_are_read_over() -> None:
    documents, findings = load("\ufeffa: 1\r\n---\r\nb: 2\r\n")
    assert findings == []
    assert documents[1].locate("/b") == (3, 4)


def test_anchors_and_merges() -> None:
    (document,), findings = load("a: &x {k: 1, l: 2}\nb: {<<: *x, l: 3}\nc: *x\nd: {<<: [*x, {m: 4}]}\n")
    assert findings == []
    assert document.tree["b"] == {"l": "3", "k": "1"}
    assert document.tree["c"] == {"k": "1", "l": "2"}
    assert document.tree["d"] == {"k": "1", "l": "2", "m": "4"}
    assert document.locate("/c/l") == (1, 17)


@pytest.mark.parametrize("item", ["[{}]", "{{<<: [{}]}}"])
def test_an_alias_bomb_is_refused(item: str) -> None:
    lines = ["a: &a {x: 1}"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} {item.format(','.join([f'*{before}'] * 9))}")
    assert only("\n".join(lines)) == ("config.alias_limit", 1, 1)


def test_scalars_keep_their_spelling() -> None:
    (document,), _ = load("a: 1.50\nb: true\nc: 007\nd:\ne: ''\nf: null\n")
    assert document.tree == {"a": "1.50", "b": "true", "c": "007", "d": None, "e": "", "f": None}


@pytest.mark.parametrize("value", ["!env HOME", "!!python/object:os.system x", "!!binary aGk=", "!x {a: 1}", "!<x> 1"])
def test_a_tag_of_another_program_is_a_finding(value: str) -> None:
    """It was left out without a word: the text HOME instead of what the variable holds."""
    assert only(f"a: {value}")[0] == "config.tag_unknown"


def test_yaml_s_own_tags_are_taken() -> None:
    (document,), findings = load("a: !!str 1\nb: !!int 2\nc: ! x\nd: !!map {e: 2001-01-01}\nf: =\n")
    assert findings == []
    assert document.tree == {"a": "1", "b": "2", "c": "x", "d": {"e": "2001-01-01"}, "f": "="}


def test_an_escaped_pair_of_halves_is_one_character() -> None:
    """As in JSON, which is YAML; also in a key."""
    (document,), findings = load(r'{"a\ud83d\ude00": "x\ud83d\ude00"}')
    assert findings == []
    assert document.tree == {"a\U0001f600": "x\U0001f600"}


@pytest.mark.parametrize("text", [r'a: "x\ud83d"', r'a: "\ude00\ud83d"', r'"\ud800": 1', "a: $HALF"])
def test_half_of_a_character_is_a_finding(text: str) -> None:
    """Also in a variable that is not UTF-8; no later stage sees a text that can't be encoded."""
    (document,), _ = load(text, HALF="\udce9")
    assert [finding.code for finding in document.findings] == ["config.text_invalid"]
    json.dumps([document.tree, document.findings[0].as_json()], ensure_ascii=False).encode()


@pytest.mark.parametrize(("text", "most"), [("[" * 10_000, 2.0), ("{a: " * 10_000, 2.0)])
def test_deep_nesting_is_refused_before_it_takes_time(text: str, most: float) -> None:
    """The library's time grows with the square of the depth: ten seconds for this one."""
    began = time.process_time()
    _, (finding,) = load(text)
    assert finding.message == "the document is nested too deeply"
    assert time.process_time() - began < most


@pytest.mark.parametrize(
    ("text", "column"),
    [("a: x$NOPE", 5), ("a: 'x${NOPE}'", 6), ("a: $$ $A ${NOPE}", 10), ("a: \"$A '${NOPE}'\"", 9)],
)
def test_an_unset_variable_is_found_where_it_stands(text: str, column: int) -> None:
    (document,), _ = load(text, A="long value")
    (finding,) = document.findings
    assert (finding.code, finding.line, finding.column) == ("config.env_unset", 1, column)
    assert (finding.path, finding.fix) == ("/a", f"set NOPE, or write ${finding.got} literally")


@pytest.mark.parametrize("text", ["NOPE:-x", "NOPE-x", "NOPE:?no", "NOPE:=x"])
def test_a_default_as_in_a_shell_is_no_part_of_a_name(text: str) -> None:
    """The fix was to set a variable called ``NOPE:-x``."""
    (document,), _ = load(f"a: ${{{text}}}")
    (finding,) = document.findings
    fix = f"write ${{NOPE}} and set NOPE: a reference has no default; or write $${{{text}}} literally"
    assert (finding.code, finding.fix) == ("config.env_unset", fix)


def test_a_variable_in_a_block_is_found_on_its_line() -> None:
    (document,), _ = load("a: |\n  one\n  two $NOPE\n")
    assert [(finding.line, finding.column) for finding in document.findings] == [(3, 7)]


def test_a_reference_without_a_name() -> None:
    (document,), _ = load("a: x${}")
    (finding,) = document.findings
    assert (finding.code, finding.column, finding.got) == ("config.env_invalid", 5, "${}")


def test_keys_and_comments_are_not_expanded() -> None:
    (document,), _ = load("$A: $A # $NOPE", A="1")
    assert (document.tree, document.findings) == ({"$A": "1"}, [])


def test_what_may_be_printed_is_not_expanded() -> None:
    (document,), _ = load("a: $SECRET", SECRET="hunter2")
    assert (document.tree["a"], document.text("/a")) == ("hunter2", "$SECRET")


def test_a_large_text_is_refused() -> None:
    assert only("#" * (MAX_BYTES + 1)) == ("config.file_too_large", 1, 1)


class TestFiles:
    def refused(self, path: Path) -> Finding:
        finding = read_source(path, "f.yaml")
        assert isinstance(finding, Finding)
        assert (finding.file, finding.line, finding.column) == ("f.yaml", 1, 1)
        return finding

    def test_missing(self, tmp_path: Path) -> None:
        finding = self.refused(tmp_path / "none.yaml")
        assert (finding.code, "No such file" in finding.message) == ("config.file_unreadable", True)
        assert str(finding.fix).endswith("conduit-dagster pipelines list shows each pipeline's file")

    def test_a_folder(self, tmp_path: Path) -> None:
        assert self.refused(tmp_path).message == "a folder, not a file"

    def test_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"a: \xff")
        assert self.refused(tmp_path / "x").message == "the file is not UTF-8: byte 3 cannot be read"

    def test_a_name_that_no_system_takes(self) -> None:
        assert self.refused(Path("a\0b")).code == "config.file_unreadable"

    def test_endless(self) -> None:
        assert self.refused(Path("/dev/zero")).code == "config.file_too_large"

"""``custom.javascript``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processors.conftest import documents, make
from pydantic import ValidationError
from structlog.testing import capture_logs

from conduit_dagster.cli.terminal import configure_logs
from conduit_dagster.config.project_settings import LogSettings
from conduit_dagster.processors.custom_javascript import CustomJavascript
from conduit_dagster.record import OPERATIONS, Record, copy
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import DROP, Nack

SAME = "function process(rec) { return rec; }"


def run(body: str, *records: Record, **settings: str) -> list[Any]:
    """The results for records; ``body`` is that of the function."""
    subject = make("custom.javascript", {"script": f"function process(rec) {{ {body} }}", **settings})
    return list(subject.process_block(list(records)))


def after(body: str, value: Any = None) -> Any:
    """The result for one payload."""
    [result] = run(body, Record("1", {}, value))
    return result.after if isinstance(result, Record) else result


@pytest.mark.parametrize("case", ["javascript", "javascript-throws"])
def test_golden(golden: Callable[[str], None], case: str) -> None:
    golden(case)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SAFE = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT
JSON = st.recursive(SAFE, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)
DATA = st.none() | st.binary() | st.dictionaries(TEXT, JSON, max_size=5)


@given(st.sampled_from(OPERATIONS), st.dictionaries(TEXT, TEXT), DATA, DATA, DATA)
def test_a_script_that_does_nothing_changes_nothing(
    operation: str, metadata: dict[str, str], after_: Any, key: Any, before: Any
) -> None:
    record = Record("é1", metadata, after_, key, before, operation)
    [result] = make("custom.javascript", {"script": SAME}).process_block([copy(record)])
    # JavaScript has no order of its own for names that are numbers
    assert result == record


@pytest.mark.parametrize(
    ("body", "value", "expected"),
    [
        ("rec.Payload.After = RawData('é€'); return rec;", None, "é€".encode()),
        ("rec.Payload.After = new RawData(); return rec;", None, b""),
        ("rec.Payload.After = {n: rec.Payload.After.length, t: String(rec.Payload.After)}; return rec;", "é".encode(),
         {"n": 2, "t": "é"}),
        ("rec.Payload.After[0] = 65; return rec;", b"xyz", b"Ayz"),
        ("rec.Payload.After = {t: String.fromCharCode.apply(String, rec.Payload.After)}; return rec;", b"abc",
         {"t": "abc"}),
        ("const r = Record(); r.Operation = 'update'; r.Payload.After = StructuredData(); return r;", {"a": 1}, {}),
        ("return {...rec, Payload: {After: {k: Object.keys(rec).length}}};", {"a": 1}, {"k": 5}),
        ("delete rec.Payload.After; return rec;", {"a": 1}, None),
        ("rec.Payload.After.n = [1.5, null, {x: NaN}]; return rec;", {}, {"n": [1.5, None, {"x": None}]}),
        ("rec.Payload.After.u = undefined; return rec;", {}, {"u": None}),
        ("rec.Payload.After.r = RawData('hi'); return rec;", {}, {"r": "aGk="}),
        ("rec.Payload.After.r = ['', 'a', 'ab', 'abc', 'ÿ'].map(RawData); return rec;", {},
         {"r": ["", "YQ==", "YWI=", "YWJj", "w78="]}),
        ("rec.Payload.After.p = rec.Position.toString(); return rec;", {}, {"p": "1"}),
    ],
)  # fmt: skip
def test_what_a_script_can_do(body: str, value: Any, expected: Any) -> None:
    assert after(body, value) == expected


def test_metadata_is_text_and_the_position_stays() -> None:
    metadata = {"m": "x"}
    record = Record("7", metadata, None)
    [result] = run("rec.Metadata.n = 5; rec.Position = RawData('9'); return rec;", record)
    assert result.metadata == {"m": "x", "n": "5"} and result.position == "7"
    assert metadata == {"m": "x"}


def test_metadata_without_a_value_is_empty_text() -> None:
    """As in Conduit."""
    record = Record("1", {"a": "x"}, {})
    assert run("rec.Metadata.a = null; rec.Metadata.b = undefined; rec.Metadata.c = 5; return rec;", record)
    assert record.metadata == {"a": "", "b": "", "c": "5"}


def test_null_and_nothing_drop_it() -> None:
    assert run("return null;", Record("1", {})) == run("", Record("1", {})) == [DROP]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("throw new Error('no');", "javascript.failed"),
        ("throw 'text';", "javascript.failed"),
        ("return rec.Payload.After.missing.deep;", "javascript.failed"),
        ("return 5;", "javascript.failed"),
        ("return [rec];", "javascript.failed"),
        ("rec.Payload.After = 'text'; return rec;", "javascript.failed"),
        ("rec.Payload.After = [1]; return rec;", "javascript.failed"),
        ("rec.Operation = 'upsert'; return rec;", "javascript.result"),
        ("return Record();", "javascript.result"),
        ("rec.Payload.After.s = '\\ud800'; return rec;", "javascript.result"),
        ("rec.Payload.After.me = rec; return rec;", "javascript.failed"),
        ("function f() { return f() + 1; } return f();", "javascript.failed"),
        ("require('fs');", "javascript.failed"),
    ],
)
def test_what_fails_is_a_nack_between_its_neighbours(body: str, code: str) -> None:
    records = [Record(str(i), {}, {"i": i}) for i in range(3)]
    first, nack, last = run(f"if (rec.Payload.After.i != 1) return rec; {body}", *records)
    assert isinstance(nack, Nack) and nack.code == code
    assert (first.after, last.after) == ({"i": 0}, {"i": 2})


def test_text_that_a_script_cuts_inside_a_character_is_its_results_fault() -> None:
    nack = after("rec.Payload.After.s = rec.Payload.After.s.slice(0, 3); return rec;", {"s": "ab😀"})
    said = "the script's record has text that ends inside a character, such as half of 😀"
    assert nack == Nack("javascript.result", said)


@pytest.mark.parametrize("value", [{"s": "\ud800"}, {"n": 2**5000}, {"n": float("nan")}])
def test_what_can_not_be_given_to_a_script(value: Any) -> None:
    found = after("return rec;", value)
    assert isinstance(found, Nack) or found["n"] is None


def test_a_script_that_does_not_end_is_stopped() -> None:
    records = [Record(str(i), {}, {"i": i}) for i in range(3)]
    body = "if (rec.Payload.After.i == 1) for (;;) {} return rec;"
    first, nack, last = run(body, *records, **{"limit.time": "100ms"})
    assert isinstance(nack, Nack) and nack.code == "javascript.too_long" and "0.1 s" in nack.message
    assert isinstance(first, Record) and isinstance(last, Record)


def test_a_script_that_takes_all_memory_is_stopped_and_what_it_held_is_gone() -> None:
    records = [Record(str(i), {}, {"i": i}) for i in range(3)]
    body = "if (rec.Payload.After.i == 1) for (;;) held.push(new Array(1000).fill(1)); return rec;"
    script = {"script": f"const held = []; function process(rec) {{ {body} }}", "limit.memory": "8"}
    first, nack, last = make("custom.javascript", {**script, "limit.time": "20s"}).process_block(records)
    assert isinstance(nack, Nack) and nack.code == "javascript.memory" and "8 MB" in nack.message
    assert isinstance(first, Record) and isinstance(last, Record)


def test_time_and_chance_are_those_of_the_step() -> None:
    body = "return {...rec, Payload: {After: {d: [Date.now(), +new Date(), new Date(0).getTime()], r: Math.random()}}};"
    script = {"script": f"function process(rec) {{ {body} }}"}
    found = [
        documents(make("custom.javascript", script, 5_000_000).process_block([Record(p, {}) for p in "ab"]))
        for _ in range(2)
    ]
    assert found[0] == found[1] and found[0][0]["d"] == [5, 5, 0]
    assert found[0][0]["r"] != found[0][1]["r"]


def test_it_logs() -> None:
    with capture_logs() as logged:
        run("logger.Info().Str('k', 'v').Int('n', 1).Msg('hello'); logger.Warn().Msgf('%s!', 'x'); throw 'no';",
            Record("1", {}))  # fmt: skip
    assert [(row["event"], row["log_level"], row.get("k"), row.get("n")) for row in logged] == [
        ("hello", "info", "v", 1),
        ("x!", "warning", None, None),
    ]


def test_its_log_goes_where_the_project_s_goes(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings are applied after the import."""
    configure_logs(LogSettings(format="json"))
    run("logger.Info().Msg('hello'); return rec;", Record("1", {}))
    said = capsys.readouterr()
    assert (said.out, '"event": "hello"' in said.err) == ("", True)


def test_it_may_be_used_by_several_threads() -> None:
    subject = make("custom.javascript", {"script": SAME})
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(subject.process_block([Record("1", {}, {"a": 1})])))
    thread.start()
    thread.join()
    assert found == [Record("1", {}, {"a": 1})]


@pytest.mark.parametrize("script", ["function (", "var process = 5;", "function other() {}", "throw new Error('x');"])
def test_a_script_that_can_not_be_used(script: str) -> None:
    with pytest.raises(FatalError) as error:
        make("custom.javascript", {"script": script})
    assert error.value.code == "javascript.invalid" and error.value.fix


@pytest.mark.parametrize("settings", [{}, {"script": "a", "script.path": "b"}, {"script": SAME, "limit.time": "0"}])
def test_settings_that_do_not_fit(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        make("custom.javascript", settings)


def test_a_file_travels_as_its_text(tmp_path: Path) -> None:
    (tmp_path / "p.js").write_text(SAME)
    settings = {"script.path": "p.js", "limit.memory": "8"}
    assert CustomJavascript.travelling(settings, str(tmp_path)) == {"script": SAME, "limit.memory": "8"}
    with pytest.raises(FatalError, match="No such file") as error:
        CustomJavascript.travelling({"script.path": "gone.js"}, str(tmp_path))
    assert error.value.code == "javascript.unreadable"


def test_no_name_is_special() -> None:
    odd = {"__proto__": "x", "constructor": "y", "toString": "z"}
    [result] = run("return rec;", Record("1", dict(odd), {**odd, "deep": dict(odd)}, dict(odd)))
    assert (result.metadata, result.after, result.key) == (odd, {**odd, "deep": odd}, odd)

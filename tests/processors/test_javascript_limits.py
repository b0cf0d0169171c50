"""Limits of ``custom.javascript`` hold wherever a script spends its time, and end with the calling process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import psutil
import pytest
from lab.waiting import wait_until
from processors.conftest import documents, make
from structlog.testing import capture_logs

from conduit_dagster.javascript.engine_client import ENGINES, engines
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Nack

NATIVE = "Array.prototype.reverse.call({length: 2 ** 40});"
"""A loop inside one native call: QuickJS does not look at the time there."""


def run(body: str, count: int = 3, **settings: str) -> list[Any]:
    """The results for ``count`` records numbered ``i``."""
    subject = make("custom.javascript", {"script": f"function process(rec) {{ {body} }}", **settings})
    return list(subject.process_block([Record(str(i), {}, {"i": i}) for i in range(count)]))


def engine_pid() -> int:
    with engines() as client:
        return client.pid


@pytest.mark.parametrize(
    "native",
    [
        NATIVE,
        "Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1);",
        "Array.prototype.includes.call({length: 2 ** 40}, 1);",
        "const b = {length: 2 ** 32, [Symbol.isConcatSpreadable]: true}; [].concat(b, b);",
    ],
)
def test_a_native_call_that_does_not_end_is_the_nack_of_its_record_alone(native: str) -> None:
    results = run(f"if (rec.Payload.After.i == 7) {{ {native} }} return rec;", 20, **{"limit.time": "100ms"})
    nacks = [(i, result.code) for i, result in enumerate(results) if isinstance(result, Nack)]
    assert nacks == [(7, "javascript.too_long")]
    assert [one["i"] for one in documents(result for result in results if isinstance(result, Record))] == [
        i for i in range(20) if i != 7
    ]


@pytest.mark.parametrize("script", [NATIVE, "for (;;) {}", "throw {toString() { for (;;) {} }};"])
def test_a_top_level_that_does_not_end_is_refused(script: str) -> None:
    """Also while Python's own lock is held: an exception's text is made by the script."""
    with pytest.raises(FatalError, match=r"top level takes more than 0\.1 s") as error:
        make("custom.javascript", {"script": f"{script} function process(r) {{ return r }}", "limit.time": "100ms"})
    assert error.value.code == "javascript.invalid"


def test_a_top_level_that_takes_all_memory_is_refused() -> None:
    script = "const a = []; for (;;) a.push(new Array(1000).fill(1)); function process(r) { return r }"
    with pytest.raises(FatalError, match="top level takes more than 8 MB"):
        make("custom.javascript", {"script": script, "limit.memory": "8", "limit.time": "20s"})


def test_slow_records_before_the_one_that_is_stopped_keep_their_results() -> None:
    spin = "const end = rec.Payload.After.i < 4 ? 300000 : 0; for (let k = 0; k < end; k++) {}"
    results = run(f"{spin} if (rec.Payload.After.i == 5) {{ {NATIVE} }} return rec;", 8, **{"limit.time": "500ms"})
    assert [isinstance(result, Nack) for result in results] == [i == 5 for i in range(8)]


def test_a_script_keeps_its_state_between_records_that_stay_within_the_limits() -> None:
    """Not guaranteed, but a nack for time inside the script's own loop does not lose it."""
    body = "n++; if (r.Payload.After.i == 1) for (;;) {} r.Payload.After = {n}; return r"
    script = {"script": f"let n = 0; function process(r) {{ {body} }}", "limit.time": "100ms"}
    subject = make("custom.javascript", script)
    first, nack, last = subject.process_block([Record(str(i), {}, {"i": i}) for i in range(3)])
    assert isinstance(nack, Nack) and nack.code == "javascript.too_long"
    assert documents([first, last]) == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize(
    "script",
    [
        "const known = {}; function process(r) { known[r.Payload.After.i] = Array(2000).fill(r); return r }",
        "const table = Array(80000).fill(1); function process(r) { logger.Info().Str('a', 'b').Msg('x'); return r }",
    ],
    ids=["a table that grows", "cycles that are collected late"],
)
def test_memory_that_records_fill_together_is_no_nack(script: str) -> None:
    subject = make("custom.javascript", {"script": script, "limit.memory": "2"})
    results = subject.process_block([Record(str(i), {}, {"i": i}) for i in range(2000)])
    assert [result for result in results if not isinstance(result, Record)] == []


def test_a_record_that_takes_all_memory_by_itself_is_the_only_nack() -> None:
    grow = "if (r.Payload.After.i == 3) for (;;) known.push(Array(1000).fill(1));"
    script = f"const known = []; function process(r) {{ {grow} known.push(Array(20000).fill(1)); return r }}"
    subject = make("custom.javascript", {"script": script, "limit.memory": "1", "limit.time": "20s"})
    results = subject.process_block([Record(str(i), {}, {"i": i}) for i in range(20)])
    nacks = [(i, result.code) for i, result in enumerate(results) if isinstance(result, Nack)]
    assert nacks == [(3, "javascript.memory")]


def test_an_engine_process_that_is_killed_is_replaced() -> None:
    subject = make("custom.javascript", {"script": "function process(r) { return r }"})
    pid = engine_pid()
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    assert subject.process_block([Record("1", {}, {"a": 1})]) == [Record("1", {}, {"a": 1})]
    assert engine_pid() != pid


@pytest.mark.slow
def test_a_record_at_which_the_process_is_killed_is_tried_again() -> None:
    """Whoever killed it: the record is not blamed the first time."""
    script = f"function process(r) {{ {NATIVE} return r }}"
    subject = make("custom.javascript", {"script": script, "limit.time": "3s"})
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(subject.process_block([Record("1", {}, {})])))
    pid = engine_pid()
    busy = psutil.Process(pid)
    before = busy.cpu_times().user
    thread.start()
    wait_until(lambda: busy.cpu_times().user > before + 0.1, "it is inside the call")
    os.kill(pid, signal.SIGKILL)
    thread.join()
    assert [nack.code for nack in found] == ["javascript.too_long"]


def test_many_scripts_share_one_process() -> None:
    scripts = [
        make("custom.javascript", {"script": f"function process(r) {{ r.Payload.After = {{n: {n}}}; return r }}"})
        for n in range(ENGINES + 3)
    ]
    pid = engine_pid()
    for _ in range(2):
        found = [documents(script.process_block([Record("1", {}, {})]))[0]["n"] for script in scripts]
        assert found == list(range(ENGINES + 3))
    assert engine_pid() == pid


_PARENT = textwrap.dedent(
    """
    import threading
    from conduit_dagster.javascript.engine_client import engines
    from conduit_dagster.javascript.script import Script
    from conduit_dagster.record import Record

    script = Script(SCRIPT, 60.0, 64)
    with engines() as client:
        print(client.pid, flush=True)
    script.run([Record("1", {}, {})], [0], 0)
    print("ready", flush=True)
    threading.Event().wait()
    """
)


@pytest.mark.parametrize("where", ["idle", "inside a native call"])
def test_the_engine_process_ends_with_a_parent_that_is_killed(where: str) -> None:
    body = "return r" if where == "idle" else f"{NATIVE} return r"
    code = _PARENT.replace("SCRIPT", repr(f"function process(r) {{ {body} }}"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine = psutil.Process(int(parent.stdout.readline()))
    if where == "idle":
        assert parent.stdout.readline() == "ready\n"
    else:
        wait_until(lambda: engine.cpu_times().user > 0.2, "it is inside the call")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    engine.wait(timeout=60)


def test_a_forked_process_has_an_engine_process_of_its_own() -> None:
    code = textwrap.dedent(
        """
        import os
        from conduit_dagster.javascript.engine_client import engines
        from conduit_dagster.javascript.script import Script
        from conduit_dagster.record import Record

        def work():
            script.run([Record(str(i), {}, {"a": i}) for i in range(500)], [0] * 500, 0)
            with engines() as client:
                return client.pid

        script = Script("function process(r) { return r }", 1.0, 64)
        own = work()
        child = os.fork()
        if child == 0:
            os._exit(0 if work() != own else 1)
        for _ in range(20):
            assert work() == own
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_interrupting_the_group_leaves_the_engine_process_at_work() -> None:
    """Ctrl-C reaches every process of the terminal; the parent drains, and needs its scripts for it."""
    subject = make("custom.javascript", {"script": "function process(r) { return r }"})
    pid = engine_pid()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert len(subject.process_block([Record("1", {}, {})])) == 1
    assert engine_pid() == pid


def test_a_script_names_no_attribute_of_the_logger() -> None:
    """Levels are Conduit's five, and a field cannot replace what the log itself writes."""
    body = """
        logger.Error().Str("exc_info", "a").Str("event", "b").Str("self", "c").Str("_logger", "d").Msg("hello");
        logger.Trace().Msg("low");
        if (typeof logger["__class__"] !== "undefined" || typeof logger.Unbind !== "undefined") throw "more levels";
        return rec;
    """
    with capture_logs() as logged:
        results = run(body, 1)
    assert isinstance(results[0], Record)
    assert logged == [
        {"event": "hello", "log_level": "error", "script_exc_info": "a", "script_event": "b", "script_self": "c",
         "script__logger": "d"},
        {"event": "low", "log_level": "debug"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "tamper",
    [
        "Array.prototype.toJSON = () => ['create', {}, 'rrr', 1, 2, 3];",
        "Array.prototype.toJSON = function () { return [null, null, [['__class__', 'x', {}]]] };",
        "Object.prototype.toJSON = () => 5;",
        "String.prototype.toJSON = () => ({}); Array.prototype.toJSON = () => 'x';",
        "Array.prototype.join = () => 'rrrr';",
        "Array.prototype.push = () => 0;",
    ],
)
def test_a_script_that_tampers_with_its_answer_gets_a_nack(tamper: str) -> None:
    [result] = run(f"{tamper} return rec;", 1)
    assert isinstance(result, Nack) and result.code in ("javascript.record", "javascript.result", "javascript.failed")

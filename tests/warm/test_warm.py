"""Processes from a warm parent: like newly started ones, only sooner."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.freezing import frozen
from lab.waiting import at_once, wait_until

from conduit_dagster.processes import is_alive, is_dead, is_running, started_at
from conduit_dagster.warm import client, protocol
from conduit_dagster.warm.client import ForkedProcess, NotWarmError, spawn
from conduit_dagster.warm.protocol import ForkRequest

# a module that a child runs: prints its identity, then follows its arguments
SAYS = """
import json, os, signal, sys, random
import heavy
print(json.dumps({
    "words": sys.argv[1:], "folder": os.getcwd(), "first": sys.path[0], "env": os.environ.get("MINE"),
    "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "name": __name__, "heavy": heavy.PID,
    "chance": random.random(), "sockets": sum("socket" in os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
}))
print("to the other stream", file=sys.stderr)
match sys.argv[1:]:
    case ["exit", code]:
        sys.exit(int(code))
    case ["read"]:
        print(sys.stdin.read())
    case ["wait"]:
        signal.pause()
"""


class Nursery:
    """A user's folder of sockets, and a search path with the modules above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "says.py").write_text(SAYS)
        # the parent's own process imports it
        (root / "heavy.py").write_text("import os\nPID = os.getpid()\n")
        self.out = root / "out"

    def spawn(self, *words: str, streams: list[int] | None = None, **environment: str) -> ForkedProcess:
        child = self.held(*words, streams=streams, **environment)
        child.begin()
        return child

    def held(self, *words: str, streams: list[int] | None = None, **environment: str) -> ForkedProcess:
        wanted = self.wanted(*words, **environment)
        with self.out.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            return spawn("tests", wanted, streams or [nothing.fileno(), out.fileno(), out.fileno()])

    def wanted(self, *words: str, **environment: str) -> ForkRequest:
        env = {**os.environ, "PYTHONPATH": str(self.root), **environment}
        return ForkRequest("says", list(words), str(self.root), env)

    def said(self) -> list[dict[str, Any]]:
        lines = self.out.read_text().splitlines() if self.out.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def run(self, *words: str) -> dict[str, Any]:
        assert self.spawn(*words).wait() == 0
        return self.said()[-1]


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, socket_folder: Path) -> Iterator[Nursery]:
    monkeypatch.setattr(tempfile, "tempdir", str(socket_folder))
    monkeypatch.setitem(protocol.MODULES, "tests", ("heavy",))
    monkeypatch.setenv("CONDUIT_WARM_SECONDS", "60")
    root = tmp_path / "nursery"
    root.mkdir()
    yield Nursery(root)
    # a parent whose socket is gone ends by itself
    for path in socket_folder.rglob("tests-*"):
        path.unlink()


def test_a_child_is_like_a_process_that_was_started(nursery: Nursery) -> None:
    child = nursery.spawn("some", "words", MINE="yes")
    assert child.wait() == 0
    (said,) = nursery.said()
    assert said["words"] == ["some", "words"]
    assert (said["folder"], said["first"]) == (str(nursery.root), str(nursery.root))
    assert (said["env"], said["name"], said["session"]) == ("yes", "__main__", False)
    assert said["sockets"] == 0
    assert "to the other stream" in nursery.out.read_text()


def test_what_is_heavy_is_imported_once_and_chance_differs(nursery: Nursery) -> None:
    first, second = nursery.run(), nursery.run()
    assert first["heavy"] == second["heavy"] == first["parent"] == second["parent"]
    assert first["chance"] != second["chance"]


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("3", 3)])
def test_its_exit_code_comes_back(nursery: Nursery, code: str, expected: int) -> None:
    assert nursery.spawn("exit", code).wait() == expected


def test_a_killed_child_is_told_by_its_signal(nursery: Nursery) -> None:
    child = nursery.spawn("wait")
    os.kill(child.process["pid"], signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_it_does_nothing_before_it_may_begin(nursery: Nursery) -> None:
    with nursery.held() as child:
        assert nursery.run()["words"] == []
        assert len(nursery.said()) == 1
        child.begin()
        assert child.wait() == 0
    assert len(nursery.said()) == 2


def test_where_its_client_goes_away_before_it_never_begins(nursery: Nursery) -> None:
    """A caller that does not know of a child does the work elsewhere: it would be done twice."""
    with nursery.held() as child:
        assert is_running(child.process)
    wait_until(lambda: is_dead(child.process), "it ended")
    assert nursery.said() == []


def test_a_client_that_dies_without_an_answer_leaves_nobody_behind(nursery: Nursery) -> None:
    parent = nursery.run()["parent"]
    with frozen(parent), pytest.raises(NotWarmError):
        spawn("tests", nursery.wanted(), [0, 1, 2], seconds=1)
    # the parent answers the pending request first, and only then the next one
    assert nursery.run()["parent"] == parent
    wait_until(lambda: not children_of(parent), "it ended")
    assert len(nursery.said()) == 2


def test_a_signal_that_ends_it_is_its_exit_code(nursery: Nursery) -> None:
    child = nursery.spawn("wait")
    wait_until(nursery.said, "it runs")
    os.kill(child.process["pid"], signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_its_streams_are_the_clients(nursery: Nursery) -> None:
    ours, its = os.pipe()
    reads, writes = os.pipe()
    child = nursery.spawn("read", streams=[reads, its, its])
    os.close(its)
    os.close(reads)
    os.write(writes, b"a word for it")
    os.close(writes)
    with os.fdopen(ours) as output:
        assert output.read().endswith("a word for it\n")
    assert child.wait() == 0


def test_of_several_clients_at_the_same_moment_one_starts_the_parent(nursery: Nursery) -> None:
    children = at_once(lambda _: nursery.spawn(), 4)
    assert [child.wait() for child in children] == [0] * 4
    assert len({said["parent"] for said in nursery.said()}) == 1


def test_a_parent_that_was_prepared_is_the_one_that_forks(nursery: Nursery) -> None:
    """It starts by itself; preparing it again starts no second one, and it can be disabled."""
    environment = nursery.wanted().environment
    path = protocol.socket_path("tests", sys.executable, environment["PYTHONPATH"])
    client.prepare("tests", {**environment, "CONDUIT_WARM_SECONDS": "0"})
    assert not path.with_suffix(".log").exists()
    client.prepare("tests", environment)
    wait_until(path.exists, "the parent listens")
    inode = path.stat().st_ino
    client.prepare("tests", environment)
    nursery.run()
    assert path.stat().st_ino == inode


def test_a_parent_that_was_killed_is_replaced_and_its_child_lives(nursery: Nursery) -> None:
    child = nursery.spawn("wait")
    wait_until(nursery.said, "it runs")
    os.kill(nursery.said()[0]["parent"], signal.SIGKILL)
    assert nursery.run()["parent"] != nursery.said()[0]["parent"]
    assert is_running(child.process)
    os.kill(child.process["pid"], signal.SIGTERM)
    assert child.wait() == 1  # no process knows its code any more
    assert is_dead(child.process)


@pytest.mark.parametrize("change", [lambda path: os.utime(path, (1, 1)), lambda path: path.unlink()])
def test_changed_code_is_never_run_from_memory(nursery: Nursery, change: Callable[[Path], None]) -> None:
    before = nursery.run()["parent"]
    path = nursery.root / "heavy.py"
    text = path.read_text()
    change(path)
    if not path.exists():
        path.write_text(text)
    assert nursery.run()["parent"] != before


def test_another_search_path_has_another_parent(nursery: Nursery, tmp_path: Path) -> None:
    before = nursery.run()["parent"]
    nursery.spawn(PYTHONPATH=f"{nursery.root}{os.pathsep}{tmp_path}").wait()
    assert nursery.said()[-1]["parent"] != before


@pytest.mark.slow
def test_an_idle_parent_ends(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_WARM_SECONDS", "3")
    parent = nursery.run()["parent"]
    started = started_at(parent)
    wait_until(lambda: started is None or not is_alive(parent, started), "it ended")
    assert not [path for path in Path(tempfile.gettempdir()).rglob("tests-*") if path.is_socket()]


def test_a_parent_that_does_not_start_is_told(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(protocol.MODULES, "tests", ("no_such_module",))
    with pytest.raises(NotWarmError, match=r"does not start: see .*\.log"):
        nursery.spawn()


def test_a_folder_that_others_can_reach_is_not_used(nursery: Nursery) -> None:
    nursery.run()
    (folder,) = Path(tempfile.gettempdir()).glob("conduit-dagster-*")
    folder.chmod(0o755)
    with pytest.raises(NotWarmError, match="not this user's alone"):
        nursery.spawn()
    folder.chmod(0o700)


def test_nonsense_on_the_socket_harms_nobody(nursery: Nursery) -> None:
    """Nor does it leave a descriptor in the parent, which serves for as long as it is asked."""
    import socket

    before = nursery.run()["parent"]
    files = descriptors_of(before)
    (path,) = [path for path in Path(tempfile.gettempdir()).rglob("tests-*") if path.is_socket()]
    half = struct.pack("!I", 100) + b"{"
    for nonsense, streams in ((b"", []), (b"GET / HTTP/1.1\r\n\r\n", []), (b"?", [0, 1]), (half, [0, 1, 2])):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            if nonsense:
                socket.send_fds(connection, [nonsense], streams)
    assert nursery.run()["parent"] == before
    # the last child's own connection is closed once it is reaped
    wait_until(lambda: descriptors_of(before) <= files, "only the descriptors that it had")


def test_elsewhere_than_on_linux_nobody_forks(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.sys, "platform", "darwin")
    with pytest.raises(NotWarmError, match="Linux"):
        nursery.spawn()


@pytest.mark.slow
@pytest.mark.parametrize("role", sorted(protocol.MODULES))
def test_what_a_role_imports_starts_no_thread(role: str) -> None:
    """A thread would not survive the fork, and what it held would be locked for ever. jemalloc's own, which Arrow
    brings, knows of forks."""
    imports = "; ".join(f"import {name}" for name in protocol.MODULES[role])
    names = "[open(f'/proc/self/task/{task}/comm').read().strip() for task in os.listdir('/proc/self/task')]"
    own = "open('/proc/self/comm').read().strip()"
    code = f"{imports}; import os; threads = {names}; threads.remove({own}); print(threads)"
    environment = {**os.environ, **client.QUIET}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() in ("[]", "['jemalloc_bg_thd']")

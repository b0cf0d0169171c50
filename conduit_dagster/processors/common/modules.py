"""Python modules of a project, sent to the workers as text because they are not on their disks."""

from __future__ import annotations

import hashlib
import sys
import types
from threading import RLock

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
        sys.modules[full] = module
        try:
            exec(compile(text, file, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[full]
            raise
        return module

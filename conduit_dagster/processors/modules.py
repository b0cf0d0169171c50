"""Python modules that travel as text: those of a project, which are on no worker's disk."""

from __future__ import annotations

import hashlib
import sys
import types


def module_of(package: str, name: str, text: str, file: str) -> types.ModuleType:
    """The module behind a text; run once per process. ``file`` is what tracebacks show.

    Raises whatever the text raises while it runs.
    """
    # named after its text too: a changed one is another module, in a worker that outlives the change
    full = f"{package}.{name}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
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

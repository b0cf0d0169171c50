"""Python modules of a project, which travel as text because they are not on the workers' disks."""

from __future__ import annotations

import hashlib
import sys
import types


def module_of(package: str, name: str, text: str, file: str) -> types.ModuleType:
    """Return the module with this source text, executed once per process. Tracebacks show ``file``.

    Raises any error that the text raises while it runs.
    """
    # the name contains a hash of the text: a changed text is another module in a worker that outlives the change
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

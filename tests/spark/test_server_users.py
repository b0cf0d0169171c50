"""The shared Spark server of a project serves the user who started it, and says so to others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.server_files import ServerFiles


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")
def test_a_folder_of_another_user_is_named_as_such(socket_folder: Path) -> None:
    """The fix was to give rights to a folder that is narrowed to its user at each start."""
    home = socket_folder / "home"
    ServerFiles(home).make()
    for folder in (home, socket_folder):  # that of a test's own is in one of its user's
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        for use in (ServerFiles(home).make, ServerFiles(home).read):
            with pytest.raises(TransientError) as raised:
                use()
            assert raised.value.code == "file.no_permission"
            assert "another user's" in raised.value.message and "spark.url" in str(raised.value.fix)
    finally:
        os.seteuid(0)

"""A project whose pipelines run in this process; modules that need input have their own ``lab``."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.scripted import Script
from lab.support import Lab
from pyspark.sql import SparkSession


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    """An empty one."""
    return Lab(tmp_path, spark)


@pytest.fixture
def script(lab: Lab) -> Script:
    """What its scripted destinations report."""
    return Script(lab)

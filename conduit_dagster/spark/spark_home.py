"""Where Spark's own files are."""
# pyright: reportPrivateUsage=none

from __future__ import annotations

import os
from pathlib import Path


def spark_home() -> Path:
    """``SPARK_HOME``, else what PySpark itself takes: its own folder, as a rule."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_HOME") or _find_spark_home())

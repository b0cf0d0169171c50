"""Location of Spark's own files."""
# pyright: reportPrivateUsage=none

from __future__ import annotations

import os
from pathlib import Path


def spark_home() -> Path:
    """Return ``SPARK_HOME``, else PySpark's own choice: usually its own folder."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_HOME") or _find_spark_home())

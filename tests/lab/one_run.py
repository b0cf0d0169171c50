"""A process that runs one pipeline to its end, for tests that kill it: ``one_run.py ROOT SPARK_URL``."""

from __future__ import annotations

import sys
from pathlib import Path

from conduit_dagster.spark.session import SparkSettings, open_session
from lab.support import Lab

if __name__ == "__main__":
    session = open_session(SparkSettings(url=sys.argv[2]), "one run")
    print(Lab(Path(sys.argv[1]), session).run().as_json())

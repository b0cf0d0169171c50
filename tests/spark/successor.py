"""The next owner at the same server: ``successor.py URL WHEREABOUTS`` ends what the one before still runs."""

from __future__ import annotations

import json
import sys

from conduit_dagster.spark.owner_jobs import end_jobs_of
from conduit_dagster.spark.session import SparkSettings, open_session

if __name__ == "__main__":
    session = open_session(SparkSettings(url=sys.argv[1]), "successor")
    print(end_jobs_of(session, json.loads(sys.argv[2])))
    print(end_jobs_of(session, json.loads(sys.argv[2])))

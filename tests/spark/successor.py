"""The next owner at the same server: ``successor.py URL WHEREABOUTS`` ends what the one before still runs.

It prints how many jobs that were, the same once more, and when the first call came back.
"""

from __future__ import annotations

import json
import sys
import time

from conduit_dagster.spark import connect
from conduit_dagster.spark.connect import end_jobs_of
from conduit_dagster.spark.session import SparkSettings, open_session

if __name__ == "__main__":
    connect._WORKERS_END += 15  # on a busy machine a server takes longer to end a worker
    session = open_session(SparkSettings(url=sys.argv[1]), "successor")
    ended = end_jobs_of(session, json.loads(sys.argv[2]))
    at = time.time()
    print(ended, end_jobs_of(session, json.loads(sys.argv[2])), at)

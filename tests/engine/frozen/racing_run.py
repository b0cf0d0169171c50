"""A process that runs a pipeline when it is told to: ``racing_run.py ROOT SPARK_URL``, then a line on its input.

It says ``ready`` before, ``won`` when it has the lease, and goes on only after another line; its result comes last.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.frozen.owners import Owners

from conduit_dagster.recovery import kill_points
from conduit_dagster.spark.session import SparkSettings, open_session

_LEASE = 12.0
"""The winner shows a heartbeat four times as often, also on a busy machine."""


def said(text: str) -> None:
    """Write a line for the test."""
    print(text, flush=True)


def won(point: str, pipeline: str) -> None:
    """With the lease in hand it waits until the test has heard from the other one."""
    if point == "after-lease":
        said("won")
        sys.stdin.readline()


if __name__ == "__main__":
    owners = Owners(Path(sys.argv[1]), open_session(SparkSettings(url=sys.argv[2]), "racing"))
    kill_points.hook = won
    said("ready")
    sys.stdin.readline()
    said(json.dumps(owners.take("p", _LEASE).as_json()))

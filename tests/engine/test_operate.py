"""Operating on pipelines whose destination stores delivery hashes: what is skipped is claimed there first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operating import code_of, offsets
from postgres_lab import PgTable
from postgres_server import PostgresServer
from pyspark.sql import SparkSession
from support import DECODE, Lab, queue, source

from conduit_dagster.engine.operate.desk import Desk, owned
from conduit_dagster.engine.operate.mark import mark
from conduit_dagster.engine.operate.one_record import step
from conduit_dagster.engine.operate.standing import consumer_facts
from conduit_dagster.engine.supervisor import RunOptions
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.state.claim import open_store

"""A drain by hand while a restart is pending: it takes the restart's place, and another one follows its failure."""

from __future__ import annotations

from typing import Any

import pytest
from lab.recovery_lab import ALL, NEVER, build, events, ids, keep, keeper, names, status
from lab.support import Lab
from pyspark.sql import SparkSession

from conduit_dagster.recovery.policy import Policy


@pytest.fixture
def lab(tmp_path: Any, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def fail_once(lab: Lab, spark: SparkSession) -> None:
    """Let it wait for its restart, as after the first failure in Dagster."""
    with keeper(lab, NEVER) as one:
        assert one.once(lambda: spark, None).status == "recovering"


def test_a_drain_that_fails_leaves_a_restart_pending(lab: Lab, spark: SparkSession) -> None:
    """It made the pipeline degraded: nothing started it any more once the outage was over."""
    build(lab, {"fail-on": "read", "times": "2"})
    fail_once(lab, spark)
    drained = keep(lab, None, pending=NEVER)
    assert status(lab)[0] == drained.status == "recovering"
    assert names(lab) == ["started", "failed", "waiting"] * 2
    assert [detail["attempt"] for event, detail in events(lab) if event == "waiting"] == [1, 2]
    assert keep(lab, None, pending=NEVER).status == "stopped"
    assert ids(lab) == ALL
    assert names(lab)[-3:] == ["started", "recovered", "stopped"]


def test_a_drain_uses_up_restarts_as_they_would(lab: Lab, spark: SparkSession) -> None:
    build(lab, {"fail-on": "read", "times": "2"})
    fail_once(lab, spark)
    assert keep(lab, None, pending=Policy(max_retries=1)).status == "degraded"


def test_a_drain_beside_no_restart_is_final(lab: Lab) -> None:
    build(lab, {"fail-on": "read", "times": "1"})
    assert keep(lab, None, pending=NEVER).status == "degraded"

"""Secrets among Spark's settings: masked in what Spark shows, and on no command line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from conduit_dagster.secret_values import remember
from conduit_dagster.spark.spark_settings import redaction_conf

OPENS = """
from pathlib import Path
from pyspark import SparkContext
from conduit_dagster.secret_values import remember
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

remember(["hunter22"])
conf = {"spark.my.plain": "hunter22", "spark.my.other": "shown"}
spark = open_session(SparkSettings("local[1]", conf), "tests")
java = SparkContext._gateway.proc.pid
line = Path(f"/proc/{java}/cmdline").read_text()
print(spark.conf.get("spark.my.plain"), "spark.my.other=shown" in line, "hunter22" in line, spark.sparkContext.appName)
close_session(spark)
"""


def test_keys_that_hold_a_secret_are_redacted_as_well() -> None:
    conf = {"spark.my.plain": "with hunter22", "spark.my.other": "shown"}
    assert redaction_conf(conf) == {}
    remember(["hunter22"])
    pattern = redaction_conf(conf)["spark.redaction.regex"]
    found = [
        key for key in ("spark.my.plain", "spark_my.plain", "spark.my.plainer", "x.Password") if re.search(pattern, key)
    ]
    assert found == ["spark.my.plain", "x.Password"]
    own = redaction_conf({**conf, "spark.redaction.regex": "mine"})["spark.redaction.regex"]
    assert re.search(own, "is mine") and re.search(own, "spark.my.plain") and not re.search(own, "password")


@pytest.mark.slow
def test_the_jvm_gets_them_all_the_same_but_not_on_its_command_line() -> None:
    done = subprocess.run([sys.executable, "-c", OPENS], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["hunter22 True False tests"], done.stderr

"""The page ``docs/connectors/s3.md``: its pipeline runs."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from lab.s3_lab import S3Lab
from lab.support import Lab
from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "connectors" / "s3.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


def test_the_pipeline_of_the_page(tmp_path: Path, spark: SparkSession, s3: S3Lab) -> None:
    """With a folder of its own, and the login of the server."""
    lab = Lab(tmp_path, spark)
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    login = [f"{name}: {json.dumps(value)}" for name, value in s3.settings.items() if name != "prefix"]
    text = re.sub(
        r'\n( +)aws.bucket: "\$\{BUCKET\}"', lambda found: "".join(f"\n{found[1]}{one}" for one in login), text
    )
    text = text.replace("prefix: ", f"prefix: {s3.prefix}/")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.yaml").write_text(text, encoding="utf-8")
    for name, row in (("1", {"id": 1, "paid": True}), ("2", {"id": 2, "paid": False}), ("3", {"id": 3, "paid": True})):
        s3.put(f"orders/{name}", json.dumps(row).encode())
    s3.put("orders/4", b"no json")
    assert lab.run("orders").error is None
    s3.remove("orders/1")
    assert lab.run("orders").error is None
    assert [json.loads(row["payload"])["id"] for row in s3.within("paid").rows()] == [1, 3]
    [letter] = s3.within("dead").rows()
    assert base64.b64decode(json.loads(letter["payload"])["payload"]["after"]) == b"no json"

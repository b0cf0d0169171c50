"""``owners`` of a pipeline: what Dagster accepts as an asset's owner, and nothing else."""

from __future__ import annotations

import pytest
from dagster._core.definitions.utils import is_valid_owner

from conduit_dagster.config import ParsedFile, parse_text

TEXT = """\
version: "2.2"
pipelines:
  - id: p
    %s
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: ./in}}
      - {id: out, type: destination, plugin: file, settings: {path: ./out}}
"""
GOOD = ("ana@example.com", "a.b+c@x-y.example.org", "team:payments", "team:data platform", "team::")
BAD = ("ana", "team:", "TEAM:x", "ana@example", "ana@example.com ", "@example.com", "a b@example.com", "ana@x.example2")


def parse(line: str) -> ParsedFile:
    return parse_text(TEXT % line, "f.yaml", {})


@pytest.mark.parametrize("owner", [*GOOD, *BAD])
def test_an_owner_is_checked_as_dagster_does(owner: str) -> None:
    found = [finding.code for finding in parse(f'owners: ["{owner}"]').findings]
    assert found == ([] if owner in GOOD else ["config.field_invalid"])
    assert is_valid_owner(owner) == (owner in GOOD)


def test_the_finding_is_at_the_owner() -> None:
    [finding] = parse("owners: [team:a, payments]").findings
    assert (finding.line, finding.column, finding.path) == (4, 22, "/pipelines/0/owners/1")
    assert (finding.got, finding.fix) == ("payments", "write team:payments")
    assert finding.expected == "an e-mail address, or team: and a name"


def test_other_spellings_are_unknown_as_ever() -> None:
    [finding] = parse("owner: [team:a]").findings
    assert (finding.code, finding.severity, finding.fix) == ("config.field_unknown", "warning", "did you mean owners?")
    assert parse("owners: team:a").findings[0].code == "config.field_invalid"
    assert parse("owners:").findings == []

"""Connectors and processors of a pipeline file."""

from __future__ import annotations

import pytest
from lab.pipeline_texts import ENDS, P, only, pipeline, place

from conduit_dagster.config.findings import Finding


class TestConnectors:
    @pytest.mark.parametrize(
        ("ends", "code"),
        [
            (ENDS.replace("type: destination", "type: source"), "pipeline.no_destination"),
            (ENDS.replace("type: source", "type: destination"), "pipeline.no_source"),
        ],
    )
    def test_a12_no_source_or_destination(self, ends: str, code: str) -> None:
        parsed = pipeline("", ends)
        assert place(only(parsed)) == (code, 4, 5, f"{P}/connectors")
        assert not parsed.pipelines[0].runnable

    @pytest.mark.parametrize(("ends", "line"), [("", 3), ("    connectors: []\n", 4), ("    connectors:\n", 4)])
    def test_a12_neither(self, ends: str, line: int) -> None:
        found = [place(finding) for finding in pipeline("", ends).findings]
        assert found == [
            ("pipeline.no_source", line, 5, f"{P}/connectors"),
            ("pipeline.no_destination", line, 5, f"{P}/connectors"),
        ]

    def test_required_fields(self) -> None:
        found = [place(finding) for finding in pipeline("", "    connectors:\n      - name: x\n").findings]
        assert found == [
            ("config.field_required", 5, 9, f"{P}/connectors/0/{name}") for name in ("id", "type", "plugin")
        ]

    def test_type(self) -> None:
        finding = only(pipeline("", ENDS.replace("type: source", "type: Source")))
        assert place(finding) == ("config.field_invalid", 5, 24, f"{P}/connectors/0/type")
        assert (finding.got, finding.expected) == ("Source", "source or destination")
        assert finding.fix == "did you mean source?"

    def test_settings_are_texts(self) -> None:
        settings = "{n: 5, f: 1.50, b: true, e: , s: '007'}"
        parsed = pipeline("", ENDS.replace('"builtin:file"', f"file, settings: {settings}"))
        assert parsed.findings == []
        expected = {"n": "5", "f": "1.50", "b": "true", "e": "", "s": "007"}
        assert parsed.pipelines[0].config.connectors[0].settings == expected

    @pytest.mark.parametrize("value", ["[1]", "{b: 1}"])
    def test_a_setting_is_no_structure(self, value: str) -> None:
        finding = only(pipeline("", ENDS.replace('"builtin:file"', f"file, settings: {{a: {value}}}")))
        assert place(finding) == ("config.field_invalid", 5, 60, f"{P}/connectors/0/settings/a")

    def test_namespace(self) -> None:
        finding = only(pipeline("", ENDS.replace("plugin: ", 'namespace: "(", plugin: ', 1)))
        assert place(finding) == ("config.field_invalid", 5, 43, f"{P}/connectors/0/namespace")


class TestProcessors:
    def processor(self, fields: str) -> Finding:
        return only(pipeline(f"    processors:\n      - {{id: p, {fields}}}\n"))

    def test_plugin_is_required(self) -> None:
        finding = self.processor("workers: 1")
        assert place(finding) == ("config.field_required", 5, 9, f"{P}/processors/0/plugin")

    def test_workers(self) -> None:
        finding = self.processor("plugin: x, workers: -1")
        assert place(finding) == ("config.field_invalid", 5, 37, f"{P}/processors/0/workers")

    def test_type_is_the_old_name_of_plugin(self) -> None:
        parsed = pipeline("    processors:\n      - {id: p, type: filter}\n")
        finding = only(parsed)
        assert place(finding) == ("config.field_renamed", 5, 17, f"{P}/processors/0/type")
        assert finding.severity == "warning"
        assert parsed.pipelines[0].config.processors[0].plugin == "filter"
        assert parsed.pipelines[0].locate(f"{P}/processors/0/plugin") == (5, 23)

    def test_plugin_and_type_that_differ(self) -> None:
        finding = self.processor("plugin: a, type: b")
        assert place(finding) == ("config.field_invalid", 5, 28, f"{P}/processors/0/type")
        assert (finding.severity, finding.got) == ("error", "b")

    def test_plugin_and_type_that_agree(self) -> None:
        assert self.processor("plugin: a, type: a").code == "config.field_renamed"

    def test_no_workers_are_one(self) -> None:
        parsed = pipeline("    processors:\n      - {id: p, plugin: x, workers: 0}\n")
        assert parsed.pipelines[0].config.processors[0].workers == 1

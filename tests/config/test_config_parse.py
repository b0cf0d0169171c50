from __future__ import annotations

from pathlib import Path

import pytest
from lab.pipeline_texts import ENDS, HEAD, P, only, parse, pipeline, place

from conduit_dagster.config import parse_file, parse_text


def test_a_sound_file_has_no_findings() -> None:
    parsed = pipeline("    status: stopped\n")
    assert parsed.findings == []
    (item,) = parsed.pipelines
    assert (item.runnable, item.config.id, item.config.name, item.config.status) == (
        True,
        "orders",
        "orders",
        "stopped",
    )
    assert (item.pointer, item.config.where) == (P, P)
    assert [connector.where for connector in item.config.connectors] == [
        f"{P}/connectors/0",
        f"{P}/connectors/1",
    ]


def test_the_example_of_the_design() -> None:
    parsed = parse_text(DESIGN, "f.yaml", {"DATABASE_URL": "postgresql://x"})
    assert parsed.findings == []
    config = parsed.pipelines[0].config
    assert (config.delivery.strategy, config.delivery.batch_bytes, config.delivery.log) == (
        "exactly-once",
        128_000_000,
        "auto",
    )
    assert (config.recovery.max_delay, config.trigger.kind, config.fan_in) == (600.0, "continuous", "merge")
    assert config.destinations[0].settings == {"url": "postgresql://x", "table": "orders"}
    assert config.processors[0].condition == "after.amount > 0"
    assert (config.dead_letter_queue.window_size, config.dead_letter_queue.window_nack_threshold) == (5, 2)


class TestVersion:
    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("", ("config.version_missing", "warning", 1, 1)),
            ("version: 2.0\n", ("config.version_old", "warning", 1, 10)),
            ("version: '2.1'\n", ("config.version_old", "warning", 1, 10)),
            ("version: 2.9\n", ("config.version_unknown", "error", 1, 10)),
            ("version: 3\n", ("config.version_unknown", "error", 1, 10)),
            ("version: [2.2]\n", ("config.version_unknown", "error", 1, 10)),
        ],
    )
    def test_versions(self, version: str, expected: tuple[str, str, int, int]) -> None:
        finding = only(parse(f"{version}pipelines: []\n"))
        assert (finding.code, finding.severity, finding.line, finding.column) == expected
        assert finding.path == "/version"

    def test_version_1_names_the_way_out(self) -> None:
        finding = only(parse("version: 1.1\npipelines: {a: {status: running}}\n"))
        assert place(finding) == ("config.version_unknown", 1, 10, "/version")
        assert finding.fix is not None
        assert finding.fix.startswith('write version: "2.2", and pipelines')

    def test_a_bad_document_does_not_discard_the_others(self) -> None:
        parsed = parse(f"version: 9\npipelines: []\n---\n{HEAD}{ENDS}")
        assert [finding.code for finding in parsed.findings] == ["config.version_unknown"]
        assert [(item.config.id, item.runnable) for item in parsed.pipelines] == [("orders", True)]


class TestShape:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('version: "2.2"\n', ("config.field_required", 1, 1, "/pipelines")),
            ('version: "2.2"\npipelines: x\n', ("config.field_invalid", 2, 12, "/pipelines")),
            ('version: "2.2"\npipelines:\n  a: {}\n', ("config.field_invalid", 3, 3, "/pipelines")),
            ('version: "2.2"\npipelines:\n  - x\n', ("config.field_invalid", 3, 5, "/pipelines/0")),
        ],
    )
    def test_shapes(self, text: str, expected: tuple[str, int, int, str]) -> None:
        assert place(only(parse(text))) == expected

    @pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\n\n---\n# x\n---\n"])
    def test_an_empty_file(self, text: str) -> None:
        finding = only(parse(text))
        assert (finding.code, finding.severity, finding.line) == ("config.file_empty", "warning", 1)

    @pytest.mark.parametrize(
        ("field", "expected"),
        [
            ("connectors: x", "a list"),
            ("processors: {a: {}}", "a list"),
            ("delivery: 5", "a mapping"),
            ("description: [a]", "a text"),
        ],
    )
    def test_a_value_of_another_kind(self, field: str, expected: str) -> None:
        ends = "" if field.startswith("connectors") else ENDS
        finding = only(pipeline(f"    {field}\n", ends))
        name, column = field.partition(":")[0], field.index(":") + 7
        assert place(finding) == ("config.field_invalid", 4, column, f"{P}/{name}")
        assert finding.expected == expected

    def test_empty_values_are_not_given(self) -> None:
        parsed = pipeline("    status:\n    name: ''\n    processors:\n    dead-letter-queue: {plugin: ''}\n")
        assert parsed.findings == []
        config = parsed.pipelines[0].config
        assert (config.status, config.name, config.processors) == ("running", "orders", [])
        assert config.dead_letter_queue.plugin == "builtin:log"


class TestUnknownFields:
    @pytest.mark.parametrize(
        ("fields", "expected", "fix"),
        [
            ("    statuz: running\n", (4, 5, f"{P}/statuz"), "did you mean status?"),
            ("    deadLetterQueue: {}\n", (4, 5, f"{P}/deadLetterQueue"), "did you mean dead-letter-queue?"),
            (
                "    dead_letter_queue: {}\n",
                (4, 5, f"{P}/dead_letter_queue"),
                "did you mean dead-letter-queue?",
            ),
            (
                "    delivery: {batch_size: 1}\n",
                (4, 16, f"{P}/delivery/batch_size"),
                "did you mean batch-size?",
            ),
            ("    recovery: {min_dely: 1s}\n", (4, 16, f"{P}/recovery/min_dely"), "did you mean min-delay?"),
            ("    zzz: 1\n", (4, 5, f"{P}/zzz"), None),
            ("    where: 1\n", (4, 5, f"{P}/where"), None),
        ],
    )
    def test_a_warning_and_an_error_when_strict(
        self, fields: str, expected: tuple[int, int, str], fix: str | None
    ) -> None:
        for strict, severity in ((False, "warning"), (True, "error")):
            parsed = pipeline(fields, strict=strict)
            finding = only(parsed)
            assert place(finding) == ("config.field_unknown", *expected)
            assert (finding.severity, parsed.pipelines[0].runnable) == (severity, not strict)
            assert finding.fix == fix or fix is None

    def test_at_every_level(self) -> None:
        text = (
            'version: "2.2"\nfoo: 1\npipelines:\n  - id: p\n    connectors:\n'
            "      - {id: in, type: source, plugin: a, foo: 1, processors: [{id: x, plugin: b, foo: 1}]}\n"
            "      - {id: out, type: destination, plugin: a}\n"
            "    dead-letter-queue:\n      foo: 1\n"
        )
        assert [place(finding) for finding in parse(text).findings] == [
            ("config.field_unknown", 2, 1, "/foo"),
            ("config.field_unknown", 6, 43, f"{P}/connectors/0/foo"),
            ("config.field_unknown", 6, 83, f"{P}/connectors/0/processors/0/foo"),
            ("config.field_unknown", 9, 7, f"{P}/dead-letter-queue/foo"),
        ]

    def test_python_names_do_not_count_in_a_file(self) -> None:
        parsed = pipeline("    fan_in: join\n")
        assert parsed.pipelines[0].config.fan_in == "merge"


class TestIds:
    @pytest.mark.parametrize("text", ["", "    id: ''\n", "    id:\n"])
    def test_a_pipeline_needs_one(self, text: str) -> None:
        finding = only(parse(f'version: "2.2"\npipelines:\n  - status: running\n{text}{ENDS}'))
        line, column = (3, 5) if not text else (4, 9 if "'" in text else 5)
        assert place(finding) == ("config.field_required", line, column, f"{P}/id")

    @pytest.mark.parametrize("text", ["a b", "ä", "a/b", "x\u0663"])
    def test_characters(self, text: str) -> None:
        finding = only(parse(f'version: "2.2"\npipelines:\n  - id: "{text}"\n{ENDS}'))
        assert place(finding) == ("config.field_invalid", 3, 9, f"{P}/id")

    def test_all_allowed_characters(self) -> None:
        assert parse(f'version: "2.2"\npipelines:\n  - id: aZ09-_:.\n{ENDS}').findings == []

    @pytest.mark.parametrize(("size", "ok"), [(128, True), (129, False)])
    def test_length(self, size: int, ok: bool) -> None:
        parsed = parse(f'version: "2.2"\npipelines:\n  - id: {"x" * size}\n    name: n\n{ENDS}')
        if ok:
            assert parsed.findings == []
            return
        finding = only(parsed)
        assert place(finding) == ("config.field_too_long", 3, 9, f"{P}/id")
        assert finding.message == "the id is 129 bytes long, the limit is 128"

    def test_lengths_count_bytes(self) -> None:
        finding = only(pipeline(f"    name: {'ä' * 65}\n"))
        assert place(finding) == ("config.field_too_long", 4, 11, f"{P}/name")
        finding = only(pipeline(f"    description: {'ä' * 4097}\n"))
        assert place(finding) == ("config.field_too_long", 4, 18, f"{P}/description")
        assert finding.message == "the description is 8194 bytes long, the limit is 8192"

    @pytest.mark.parametrize(("size", "ok"), [(249, True), (250, False)])
    def test_connector_id_with_its_prefix(self, size: int, ok: bool) -> None:
        ends = ENDS.replace("id: in", f"id: {'x' * size}").replace("type: source", "type: source, name: n")
        parsed = pipeline("", ends)
        if ok:
            assert parsed.findings == []
            return
        finding = only(parsed)
        assert place(finding) == ("config.field_too_long", 5, 14, f"{P}/connectors/0/id")
        assert finding.message == "the id with its pipeline's is 257 bytes long, the limit is 256"

    @pytest.mark.parametrize("reserved", ["acks", "dead_letters"])
    def test_reserved(self, reserved: str) -> None:
        finding = only(pipeline("", ENDS.replace("id: in", f"id: {reserved}")))
        assert place(finding) == ("config.id_reserved", 5, 14, f"{P}/connectors/0/id")

    def test_two_connectors_with_one_id(self) -> None:
        finding = only(pipeline("", ENDS.replace("id: out", "id: in")))
        assert place(finding) == ("config.id_duplicate", 6, 14, f"{P}/connectors/1/id")
        assert finding.message.endswith("at f.yaml:5:14")

    def test_two_processors_with_one_id(self) -> None:
        """A processor of a connector may have the id of the pipeline's: the connector's id is a part of its name."""
        ends = ENDS.replace('"builtin:file"', "file, processors: [{id: a, plugin: x}]")
        parsed = pipeline("    processors:\n      - {id: a, plugin: x}\n      - {id: a, plugin: x}\n", ends)
        assert place(only(parsed)) == ("config.id_duplicate", 6, 14, f"{P}/processors/1/id")

    @pytest.mark.parametrize("name", ["out", "out:a", "dead_letters:a"])
    def test_two_nodes_with_one_name(self, name: str) -> None:
        """A replay, an error or a memory of one would be taken for the other's."""
        ends = ENDS.replace("{id: out,", "{id: out, processors: [{id: a, plugin: x}],")
        queue = "    dead-letter-queue: {processors: [{id: a, plugin: x}]}\n"
        finding = only(pipeline(f"    processors: [{{id: '{name}', plugin: x}}]\n{queue}", ends))
        assert (finding.code, finding.path) == ("config.id_duplicate", f"{P}/processors/0/id")
        assert f"would call it {name}, as the {'connector' if name == 'out' else 'processor'} at " in finding.message

    def test_two_processors_of_the_queue_with_one_id(self) -> None:
        parsed = pipeline("    dead-letter-queue: {processors: [{id: a, plugin: x}, {id: a, plugin: x}]}\n", ENDS)
        finding = only(parsed)
        assert (finding.code, finding.path) == ("config.id_duplicate", f"{P}/dead-letter-queue/processors/1/id")


class TestEnvironment:
    def test_values_are_replaced_before_they_are_checked(self) -> None:
        parsed = pipeline("    delivery: {batch-size: $SIZE}\n", SIZE="7")
        assert parsed.findings == []
        assert parsed.pipelines[0].config.delivery.batch_size == 7

    def test_unset_is_one_error_at_its_column(self) -> None:
        finding = only(pipeline("    delivery: {batch-size: '${SIZE}'}\n"))
        assert place(finding) == ("config.env_unset", 4, 29, f"{P}/delivery/batch-size")

    def test_a_secret_is_never_printed(self) -> None:
        parsed = pipeline(
            "    status: $X\n    name: $X\n    trigger: $X\n    recovery: {min-delay: $X}\n", X="hunter2" * 30
        )
        assert len(parsed.findings) == 4
        assert not any("hunter2" in finding.render() for finding in parsed.findings)

    def test_the_process_environment_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONDUIT_TEST_NAME", "n")
        parsed = parse_text(f"{HEAD}    name: $CONDUIT_TEST_NAME\n{ENDS}", "f.yaml")
        assert parsed.pipelines[0].config.name == "n"


class TestBrokenPipelines:
    def test_everything_is_found_at_once(self) -> None:
        parsed = pipeline(
            "    id: again\n    statuz: x\n    status: on\n    processors: [{id: a}, {id: a, plugin: x}]\n",
            "    connectors:\n      - {id: acks, type: source, plugin: p, settings: {a: $NOPE}}\n",
        )
        assert [finding.code for finding in parsed.findings] == [
            "config.key_duplicate",
            "config.field_unknown",
            "config.field_invalid",
            "config.field_required",
            "config.id_duplicate",
            "pipeline.no_destination",
            "config.id_reserved",
            "config.env_unset",
        ]
        assert not parsed.pipelines[0].runnable

    def test_what_is_sound_is_kept_for_later_checks(self) -> None:
        ends = ENDS + "      - {id: bad, type: nothing, plugin: p}\n      - {id: 'a b', type: source, plugin: kept}\n"
        config = pipeline("    fan-in: mix\n    description: d\n", ends).pipelines[0].config
        assert (config.fan_in, config.description) == ("merge", "d")
        assert [connector.plugin for connector in config.connectors] == ["builtin:file", "file@v1", "kept"]
        assert [connector.where[-1] for connector in config.connectors] == ["0", "1", "3"]

    def test_a_blank_condition_is_none(self) -> None:
        """As in Conduit."""
        ends = ENDS + "    processors:\n      - {id: p, plugin: x, condition: '  '}\n"
        assert pipeline("", ends).pipelines[0].config.processors[0].condition is None

    def test_a_flaw_of_the_document_stops_its_pipelines(self) -> None:
        parsed = parse(f'version: "2.2"\n{HEAD}{ENDS}')
        assert place(only(parsed)) == ("config.key_duplicate", 2, 1, "/version")
        assert not parsed.pipelines[0].runnable


class TestPlaces:
    def test_findings_of_later_stages(self) -> None:
        ends = ENDS + "    processors:\n      - id: p\n        plugin: x\n        condition: 'after.a >'\n"
        item = pipeline("", ends).pipelines[0]
        where = f"{item.config.processors[0].where}/condition"
        finding = item.finding(where, "x.y", "m", column_offset=8)
        assert place(finding) == ("x.y", 10, 29, f"{P}/processors/0/condition")
        assert item.written(where) == "after.a >"
        assert item.finding("/connectors/1/plugin", "x.y", "m").column == 46
        assert item.locate() == (3, 5)

    def test_the_second_document_has_its_own_pointers(self) -> None:
        parsed = parse(f"{HEAD}{ENDS}---\n{HEAD.replace('orders', 'two')}    fan-in: x\n{ENDS}")
        assert place(only(parsed)) == ("config.field_invalid", 11, 13, f"{P}/fan-in")
        assert [item.runnable for item in parsed.pipelines] == [True, False]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    parsed = parse_file(tmp_path / "none.yaml", {})
    assert [finding.code for finding in parsed.findings] == ["config.file_unreadable"]
    assert (parsed.pipelines, parsed.findings[0].file) == ([], str(tmp_path / "none.yaml"))


DESIGN = """\
version: "2.2"
pipelines:
  - id: orders
    status: running
    name: orders
    description: orders into the warehouse
    delivery:
      strategy: exactly-once
      batch-size: 1000000
      batch-bytes: 128MB
      max-in-flight: 1
      log: auto
      drift: false
      redelivery: one-at-a-time
      shutdown-timeout: 30s
    recovery: {min-delay: 1s, max-delay: 10m, backoff-factor: 2, max-retries: -1, max-retries-window: 5m}
    trigger: continuous
    fan-in: merge
    connectors:
      - id: in
        type: source
        plugin: builtin:file
        settings: {path: ./orders.jsonl}
        namespace: ".*"
        processors: []
      - id: out
        type: destination
        plugin: builtin:postgres
        settings: {url: "${DATABASE_URL}", table: orders}
    processors:
      - id: cents
        plugin: field.set
        condition: "after.amount > 0"
        settings: {field: .Payload.After.cents, expression: "after.amount * 100"}
    dead-letter-queue:
      plugin: builtin:file
      settings: {path: ./dead.jsonl}
      window-size: 5
      window-nack-threshold: 2
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config import Recovery, parse_file, parse_text
from conduit_dagster.config.findings import Finding
from conduit_dagster.config.parse import ParsedFile

HEAD = """\
version: "2.2"
pipelines:
  - id: orders
"""
ENDS = """\
    connectors:
      - {id: in, type: source, plugin: "builtin:file"}
      - {id: out, type: destination, plugin: "file@v1"}
"""
P = "/pipelines/0"


def parse(text: str, strict: bool = False, **env: str) -> ParsedFile:
    return parse_text(text, "f.yaml", env, strict)


def pipeline(fields: str, ends: str = ENDS, strict: bool = False, **env: str) -> ParsedFile:
    """The fields start on line 4, the ends after them."""
    return parse(HEAD + fields + ends, strict, **env)


def place(finding: Finding) -> tuple[str, int, int, str]:
    assert finding.file == "f.yaml"
    return finding.code, finding.line, finding.column, finding.path


def only(parsed: ParsedFile) -> Finding:
    (finding,) = parsed.findings
    return finding


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
        """Unique among those of one parent: a connector's may be called as the pipeline's."""
        ends = ENDS.replace('"builtin:file"', "file, processors: [{id: a, plugin: x}]")
        parsed = pipeline("    processors:\n      - {id: a, plugin: x}\n      - {id: a, plugin: x}\n", ends)
        assert place(only(parsed)) == ("config.id_duplicate", 6, 14, f"{P}/processors/1/id")


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


class TestDeadLetterQueue:
    def queue(self, fields: str) -> ParsedFile:
        return pipeline(f"    dead-letter-queue: {{{fields}}}\n")

    @pytest.mark.parametrize("numbers", [(2, 2), (1, 5)])
    def test_a16_window_larger_than_threshold(self, numbers: tuple[int, int]) -> None:
        finding = only(self.queue(f"window-size: {numbers[0]}, window-nack-threshold: {numbers[1]}"))
        assert place(finding) == ("config.field_invalid", 4, 38, f"{P}/dead-letter-queue/window-size")
        assert finding.fix == f"set window-size: {numbers[1] + 1}"

    def test_a16_threshold_alone_meets_the_default_window(self) -> None:
        finding = only(self.queue("window-nack-threshold: 1"))
        assert place(finding) == ("config.field_invalid", 4, 24, f"{P}/dead-letter-queue/window-size")

    @pytest.mark.parametrize(
        "fields", ["window-size: 0, window-nack-threshold: 5", "window-size: 2, window-nack-threshold: 1"]
    )
    def test_windows_that_are_right(self, fields: str) -> None:
        assert self.queue(fields).findings == []

    def test_negative_numbers(self) -> None:
        found = [place(finding) for finding in self.queue("window-size: -1, window-nack-threshold: -2").findings]
        assert found == [
            ("config.field_invalid", 4, 38, f"{P}/dead-letter-queue/window-size"),
            ("config.field_invalid", 4, 65, f"{P}/dead-letter-queue/window-nack-threshold"),
        ]

    def test_a_rule_between_fields_is_checked_beside_an_unknown_field(self) -> None:
        parsed = self.queue("window-size: 2, window-nack-threshold: 2, foo: 1")
        assert [finding.code for finding in parsed.findings] == [
            "config.field_invalid",
            "config.field_unknown",
        ]

    def test_defaults(self) -> None:
        queue = pipeline("").pipelines[0].config.dead_letter_queue
        assert queue.settings == {"level": "warn", "message": "record delivery failed"}
        assert (queue.plugin, queue.window_size, queue.window_nack_threshold) == ("builtin:log", 1, 0)

    def test_other_plugins_get_no_settings_of_the_log(self) -> None:
        assert self.queue("plugin: file").pipelines[0].config.dead_letter_queue.settings == {}


class TestOurFields:
    @pytest.mark.parametrize(
        ("section", "field"),
        [
            ("delivery", "batch-size: 0"),
            ("delivery", "batch-bytes: 12XB"),
            ("delivery", "max-in-flight: 4"),
            ("delivery", "max-in-flight: 0"),
            ("delivery", "strategy: exactly_once"),
            ("delivery", "log: record"),
            ("delivery", "drift: maybe"),
            ("delivery", "redelivery: one"),
            ("delivery", "shutdown-timeout: 30"),
            ("recovery", "min-delay: 0s"),
            ("recovery", "max-delay: -1s"),
            ("recovery", "backoff-factor: 0.5"),
            ("recovery", "backoff-factor: nan"),
            ("recovery", "max-retries: -2"),
            ("recovery", "max-retries-window: soon"),
            ("trigger", "every: 0s"),
            ("trigger", "every: 5"),
            ("trigger", "cron: x"),
        ],
    )
    def test_values(self, section: str, field: str) -> None:
        finding = only(pipeline(f"    {section}: {{{field}}}\n"))
        name, _, value = field.partition(": ")
        column = 5 + len(section) + 3 + len(name) + 2
        assert place(finding) == ("config.field_invalid", 4, column, f"{P}/{section}/{name}")
        assert finding.got == value
        assert finding.expected is not None

    def test_drift_needs_records(self) -> None:
        finding = only(pipeline("    delivery: {drift: true, log: positions}\n"))
        assert place(finding) == ("config.field_invalid", 4, 34, f"{P}/delivery/log")

    @pytest.mark.parametrize(
        "field",
        [
            "trigger: sometimes",
            "trigger: {}",
            "trigger: {evry: 5m}",
            "trigger: [1]",
            "fan-in: mix",
            "status: Running",
        ],
    )
    def test_choices(self, field: str) -> None:
        finding = only(pipeline(f"    {field}\n"))
        name = field.partition(":")[0]
        column = len(name) + 7
        assert place(finding) == ("config.field_invalid", 4, column, f"{P}/{name}")

    def test_triggers(self) -> None:
        def trigger(text: str) -> tuple[object, ...]:
            parsed = pipeline(f"    trigger: {text}\n")
            assert parsed.findings == []
            trigger = parsed.pipelines[0].config.trigger
            return trigger.kind, trigger.every, trigger.cron

        assert trigger("available-now") == ("available-now", None, None)
        assert trigger("{every: 5m}") == ("every", 300.0, None)
        assert trigger('{cron: "0 * * * *"}') == ("cron", None, "0 * * * *")

    def test_delays(self) -> None:
        finding = only(pipeline("    recovery: {min-delay: 2m, max-delay: 1m}\n"))
        assert place(finding) == ("config.field_invalid", 4, 27, f"{P}/recovery/min-delay")

    def test_delays_that_are_equal(self) -> None:
        assert pipeline("    recovery: {min-delay: 1m, max-delay: 60s}\n").findings == []

    def test_delays_meet_the_projects(self) -> None:
        text = f"{HEAD}    recovery: {{min-delay: 1h}}\n{ENDS}"
        assert place(only(parse(text))) == ("config.field_invalid", 4, 27, f"{P}/recovery/min-delay")
        assert parse_text(text, "f.yaml", {}, recovery=Recovery(max_delay=7200)).findings == []

    def test_own_values_go_over_the_projects(self) -> None:
        own = pipeline("    recovery: {max-retries: 3}\n").pipelines[0].config.recovery
        merged = own.over(Recovery(max_retries=9, min_delay=5))
        assert (merged.max_retries, merged.min_delay, merged.max_delay) == (3, 5.0, 600.0)

    def test_tests_are_free_form_and_typed(self) -> None:
        parsed = pipeline("    tests:\n      - {name: a, input: {n: 1, f: 1.5, b: true, t: '1', z: null, l: [0x10]}}\n")
        assert parsed.findings == []
        assert parsed.pipelines[0].config.tests == [
            {"name": "a", "input": {"n": 1, "f": 1.5, "b": True, "t": "1", "z": None, "l": [16]}}
        ]


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

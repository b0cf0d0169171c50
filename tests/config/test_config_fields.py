"""The dead-letter queue, and fields that Conduit does not have."""

from __future__ import annotations

import pytest
from lab.pipeline_texts import ENDS, HEAD, P, only, parse, pipeline, place

from conduit_dagster.config import Recovery, parse_text
from conduit_dagster.config.parse import ParsedFile


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
            ("delivery", "log-retention: 7d"),
            ("delivery", "shutdown-timeout: 30"),
            ("delivery", "max-lag: 0s"),
            ("delivery", "max-lag: 10"),
            ("delivery", "max-lag: soon"),
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

    def test_log_retention_needs_records(self) -> None:
        finding = only(pipeline("    delivery: {log-retention: {time: 7d}, log: positions}\n"))
        assert place(finding) == ("config.field_invalid", 4, 48, f"{P}/delivery/log")

    @pytest.mark.parametrize(
        ("retention", "where"),
        [
            ("{}", ""),
            ("{time: 0s}", "/time"),
            ("{time: 7}", "/time"),
            ("{bytes: 10XB}", "/bytes"),
            ("{bytes: 0}", "/bytes"),
        ],
    )
    def test_log_retention_needs_a_limit(self, retention: str, where: str) -> None:
        finding = only(pipeline(f"    delivery: {{log-retention: {retention}}}\n"))
        assert (finding.code, finding.path) == ("config.field_invalid", f"{P}/delivery/log-retention{where}")

    def test_log_retention_takes_days_and_sizes(self) -> None:
        parsed = pipeline("    delivery: {log-retention: {time: 7d, bytes: 10GB}}\n")
        kept = parsed.pipelines[0].config.delivery.log_retention
        assert kept is not None
        assert (kept.time, kept.bytes) == (604_800, 10_000_000_000)

    def test_max_lag_takes_days_and_is_none_by_default(self) -> None:
        settings = [pipeline(text).pipelines[0].config.delivery for text in ("", "    delivery: {max-lag: 1d12h}\n")]
        assert [one.max_lag for one in settings] == [None, 129_600]

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
        assert trigger("{kind: available-now}") == ("available-now", None, None)
        assert trigger("{kind: every, every: 5m}") == ("every", 300.0, None)

    @pytest.mark.parametrize(
        ("text", "fix"),
        [
            ("every 10m", 'write {every: "10m"}'),
            ("every", 'write {every: "5m"}'),
            ("cron 5 * * * *", 'write {cron: "5 * * * *"}'),
            ("continuos", "did you mean continuous?"),
            ("{kind: cron, every: 5m}", "leave out kind"),
            ("{kind: continuous, every: 5m}", "leave out kind"),
        ],
    )
    def test_a_trigger_in_the_wrong_form(self, text: str, fix: str) -> None:
        assert only(pipeline(f"    trigger: {text}\n")).fix == fix

    @pytest.mark.parametrize(
        ("old", "new", "value"),
        [
            (ENDS, f"    delivery: {{shutdown-timeout: $KEY}}\n{ENDS}", "42"),
            (ENDS, f"    trigger: $KEY\n{ENDS}", "every 42m"),
            ("id: orders\n", "id: $KEY\n", "4?2"),
        ],
    )
    def test_a_fix_is_not_made_of_a_references_value(self, old: str, new: str, value: str) -> None:
        """It told ``add a unit: 42s`` of a duration, and ``for example 4-2`` of an id."""
        text = (HEAD + ENDS).replace(old, new)
        [found] = [one for one in parse_text(text, "f.yaml", {"KEY": value}).findings if one.got == "$KEY"]
        assert "4" not in str(found.fix)

    def test_an_item_of_a_list_is_named_by_its_list(self) -> None:
        finding = only(pipeline("    processors: [json.decode]\n"))
        assert finding.message == "an item of processors must be a mapping"

    @pytest.mark.parametrize("text", ["${A}", "./data/${A}/in"])
    def test_a_reference_in_braces_without_quotes(self, text: str) -> None:
        finding = only(pipeline(f"    delivery: {{batch-bytes: {text}}}\n"))
        assert (finding.code, finding.fix) == ("config.parse_error", 'put the whole text in quotes: "${NAME}"')

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

    def test_payloads_of_tests_are_typed(self) -> None:
        after = "{n: 1, f: 1.5, b: true, t: '1', z: null, l: [0x10]}"
        parsed = pipeline(
            f"    tests:\n      - {{name: a, records: [{{after: {after}, key: '7', metadata: {{m: 5}}}}]}}\n"
        )
        assert parsed.findings == []
        [record] = parsed.pipelines[0].config.tests[0].records
        assert record.after == {"n": 1, "f": 1.5, "b": True, "t": "1", "z": None, "l": [16]}
        assert (record.key, record.metadata) == ("7", {"m": "5"})

    def test_what_is_no_test_is_found_in_its_place(self) -> None:
        parsed = pipeline("    tests:\n      - {name: a, records: [{after: [1]}], expects: {}}\n", strict=True)
        assert {finding.path for finding in parsed.findings} == {
            f"{P}/tests/0/records/0/after",
            f"{P}/tests/0/expects",
        }

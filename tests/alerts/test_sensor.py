"""The alert sensor, with Dagster's own context, a real state store and a real webhook."""

from __future__ import annotations

import logging

import dagster as dg
import pytest

from conduit_dagster.sensors.alerts import alert_sensor


class Sensor:
    """Ticks that pass the cursor on, as Dagster's daemon does."""

    def __init__(self, shop, cursor: str | None = None) -> None:
        self.definition = alert_sensor(shop.project)
        self.cursor = cursor
        self.skipped = ""

    def tick(self) -> None:
        with dg.instance_for_test() as instance:
            context = dg.build_sensor_context(instance=instance, cursor=self.cursor)
            data = self.definition.evaluate_tick(context)
        assert not data.run_requests
        self.skipped = data.skip_message or ""
        self.cursor = data.cursor


@pytest.fixture
def sensor(shop, receiver) -> Sensor:
    settings = f"alerts:\n  webhook: {receiver.url}\n  headers: {{X-Key: s3cr3t}}\n"
    (shop.root / "conduit.yaml").write_text(settings)
    return Sensor(shop)


def told(receiver) -> list[tuple[str, str]]:
    return [(body["alert"], body["pipeline"]) for body in receiver.bodies]


def test_a_degraded_pipeline_is_reported_once_and_again_when_it_failed_again(shop, receiver, sensor: Sensor) -> None:
    sensor.tick()
    assert (receiver.bodies, sensor.skipped) == ([], "nothing to report")
    shop.degrade("orders")
    sensor.tick()
    sensor.tick()
    assert told(receiver) == [("degraded", "orders")]
    (body,) = receiver.bodies
    assert body["text"] == "orders is degraded: x.y in orders:in: it broke\nfix: mend it"
    assert (body["project"], body["error"]["code"]) == ("shop", "x.y")
    shop.degrade("orders")
    sensor.tick()
    assert told(receiver) == [("degraded", "orders")] * 2


def test_dead_letters_are_reported_when_they_grow(shop, receiver, sensor: Sensor) -> None:
    shop.begin("orders")
    shop.letters("orders", 4)
    sensor.tick()
    assert receiver.bodies == []  # the cursor was lost: they count from now on
    shop.letters("orders", 6)
    sensor.tick()
    assert [body["dead_letters"]["new"] for body in receiver.bodies] == [2]


def test_one_alert_that_fails_takes_no_other_with_it(shop, receiver, sensor: Sensor) -> None:
    shop.degrade("a", "b", "c")
    receiver.answer = lambda body: 404 if body["pipeline"] == "b" else 200
    sensor.tick()
    assert sorted(told(receiver)) == [("degraded", "a"), ("degraded", "b"), ("degraded", "c")]
    assert sensor.skipped == "2 of 3 alerts were sent to localhost"
    receiver.bodies.clear()
    receiver.answer = lambda body: 200
    sensor.tick()
    assert told(receiver) == [("degraded", "b")]
    sensor.tick()
    assert told(receiver) == [("degraded", "b")]


def test_no_secret_is_in_cursor_logs_or_reasons(
    shop, receiver, sensor: Sensor, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    shop.degrade("orders")
    receiver.answer = lambda body: 401
    sensor.tick()
    said = capsys.readouterr()
    everything = f"{caplog.text}{said.out}{said.err}{sensor.cursor}{sensor.skipped}"
    assert "the alert degraded of pipeline orders was not sent: the webhook at localhost refused: 401" in everything
    assert "s3cr3t" not in everything
    assert "/hooks" not in everything


def test_a_lost_cursor_repeats_what_is_degraded_now(shop, receiver, sensor: Sensor) -> None:
    shop.degrade("orders")
    sensor.tick()
    sensor.cursor = "of another version"
    sensor.tick()
    sensor.tick()
    assert told(receiver) == [("degraded", "orders")] * 2


def test_without_a_webhook_it_says_so(shop, receiver) -> None:
    sensor = Sensor(shop)
    shop.degrade("orders")
    sensor.tick()
    assert sensor.skipped == "there is no webhook: set alerts.webhook in conduit.yaml"
    (shop.root / "conduit.yaml").write_text("alerts: {webhook: nonsense}\n")
    sensor.tick()
    assert sensor.skipped.startswith("conduit.yaml has mistakes")
    (shop.root / "conduit.yaml").write_text(f"alerts: {{webhook: '{receiver.url}'}}\n")
    sensor.tick()
    assert told(receiver) == [("degraded", "orders")]


def test_it_is_on_from_the_start_and_a_code_location_takes_it(shop) -> None:
    found = alert_sensor(shop.project)
    assert found.default_status == dg.DefaultSensorStatus.RUNNING
    loaded = dg.Definitions(sensors=[found])
    dg.Definitions.validate_loadable(loaded)
    assert loaded.get_repository_def().has_sensor_def("conduit_alerts")

from __future__ import annotations

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.core.clock import VirtualClock
from localcloud.services.compute import groups as managed
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.localcloud.groups.conftest import KEY, PROJECT, Groups, Page

HTTP: Json = {
    "name": "h",
    "type": "HTTP",
    "checkIntervalSec": 10,
    "unhealthyThreshold": 3,
    "httpHealthCheck": {"port": 8475, "requestPath": "/health"},
}
CHECKS = f"{PROJECT}/global/healthChecks"


def heal(groups: Groups, *, delay: int = 60, check: Json = HTTP) -> None:
    groups.api.post(CHECKS, check)
    policy = {"healthCheck": "global/healthChecks/h", "initialDelaySec": delay}
    groups.insert(autoHealingPolicies=[policy])
    groups.create("vm")


def health_of(groups: Groups) -> str:
    (found,) = groups.managed()["vm"]["instanceHealth"]
    return str(found["detailedHealthState"])


def test_an_instance_that_answers_is_left_alone(
    groups: Groups, page: Page, clock: VirtualClock, machines: FakeMachines
) -> None:
    heal(groups)
    machines.answering[f"{KEY}vm"] = page.address
    before = groups.instance("vm")["id"]
    assert health_of(groups) == "UNKNOWN"
    clock.advance(600)
    assert health_of(groups) == "HEALTHY"
    assert groups.instance("vm")["id"] == before


def test_an_unhealthy_instance_is_recreated_after_enough_failed_checks(
    groups: Groups, page: Page, clock: VirtualClock, machines: FakeMachines
) -> None:
    heal(groups)
    machines.answering[f"{KEY}vm"] = page.address
    clock.advance(100)
    before = groups.instance("vm")["id"]
    page.answers(503)
    clock.advance(20)
    assert groups.instance("vm")["id"] == before
    clock.advance(10)
    assert groups.instance("vm")["id"] != before


def test_failed_checks_are_ignored_during_the_initial_delay(
    groups: Groups, clock: VirtualClock
) -> None:
    heal(groups, delay=300)
    before = groups.instance("vm")["id"]
    clock.advance(290)
    assert health_of(groups) == "UNHEALTHY"
    assert groups.instance("vm")["id"] == before
    clock.advance(20)
    assert groups.instance("vm")["id"] != before
    assert health_of(groups) == "UNKNOWN"


def test_health_checks_continue_after_a_restart(
    groups: Groups, clock: VirtualClock, local_cloud: LocalCloud
) -> None:
    heal(groups, delay=300)
    before = groups.instance("vm")["id"]
    clock._due.clear()
    managed.resume(local_cloud.cloud)
    clock.advance(10)
    assert len([action for when, _, action in clock._due]) == 1
    clock.advance(300)
    assert groups.instance("vm")["id"] != before


def test_a_health_check_is_changed_and_kept_while_a_group_uses_it(groups: Groups) -> None:
    heal(groups)
    groups.api.delete(f"{CHECKS}/h", status=400)
    groups.api.patch(f"{CHECKS}/h", {"checkIntervalSec": 30})
    changed = groups.api.get(f"{CHECKS}/h")
    assert (changed["checkIntervalSec"], changed["unhealthyThreshold"]) == (30, 3)
    replaced = {key: value for key, value in HTTP.items() if key != "unhealthyThreshold"}
    groups.api.put(f"{CHECKS}/h", replaced)
    assert groups.api.get(f"{CHECKS}/h")["unhealthyThreshold"] == 2


def test_a_wrong_health_check_is_refused(groups: Groups) -> None:
    groups.api.post(CHECKS, HTTP | {"timeoutSec": 11}, status=400)
    groups.api.post(CHECKS, HTTP | {"checkIntervalSec": 301}, status=400)
    groups.api.post(CHECKS, HTTP | {"httpHealthCheck": {"port": 70000}}, status=400)
    groups.api.post(CHECKS, {"name": "h", "type": "TCP"}, status=501)

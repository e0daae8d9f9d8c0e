"""Log entries of VMs' serial ports, as `entries.list` gives them."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.clock import VirtualClock, rfc3339
from localcloud.core.cloud import DEVELOPER, Cloud, SerialLog
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = projects.DEFAULT_PROJECT
LIST = "logging.googleapis.com/v2/entries:list"
LOG = f"projects/{PROJECT}/logs/serialconsole.googleapis.com%2Fserial_port_1_output"
VIEWER = "user:viewer@example.com"


@pytest.fixture(autouse=True)
def logs(machines: FakeMachines, clock: VirtualClock) -> None:
    """A VM that booted twice, a minute apart, and another one."""
    first = b"SeaBIOS (version 1)\n[    1.500000] one\n"
    both = first + b"SeaBIOS (version 1)\n\n[    2.000000] two\nhalf a li"
    boots = ((0, clock.now()), (len(first), clock.now() + 60))
    machines.logs = [
        SerialLog(PROJECT, "us-central1-b", "vm", 7, boots, both),
        SerialLog(PROJECT, "us-central1-c", "Other", 8, boots[:1], b"[    9.000000] other\n"),
    ]


def listed(api: Client, filter: str = "", *, status: int = 200, **more: Any) -> list[Json]:
    body = {"resourceNames": [f"projects/{PROJECT}"], "filter": filter, **more}
    found: list[Json] = api.post(LIST, body, status=status).get("entries", [])
    return found


def texts(api: Client, filter: str = "", **more: Any) -> list[str]:
    return [entry["textPayload"].rpartition("] ")[2] for entry in listed(api, filter, **more)]


def test_an_entry_names_its_log_and_its_vm_and_when_the_line_was_written(
    api: Client, clock: VirtualClock
) -> None:
    _, entry, *_ = listed(api)
    assert {name: value for name, value in entry.items() if name != "insertId"} == {
        "logName": LOG,
        "resource": {
            "type": "gce_instance",
            "labels": {"instance_id": "7", "project_id": PROJECT, "zone": "us-central1-b"},
        },
        "labels": {"compute.googleapis.com/resource_name": "vm"},
        "textPayload": "[    1.500000] one",
        "timestamp": rfc3339(clock.now() + 1.5),
        "receiveTimestamp": rfc3339(clock.now() + 1.5),
    }


def test_lines_are_sorted_by_time_in_either_order(api: Client) -> None:
    bios = "SeaBIOS (version 1)"
    assert texts(api) == [bios, "one", "other", bios, "two"]
    assert texts(api, orderBy="timestamp desc") == ["two", bios, "other", "one", bios]
    listed(api, orderBy="textPayload", status=400)


def test_pages_follow_each_other(api: Client) -> None:
    body: Json = {"resourceNames": [f"projects/{PROJECT}"], "pageSize": 3}
    first = api.post(LIST, body)
    rest = api.post(LIST, {**body, "pageToken": first["nextPageToken"]})
    assert [len(first["entries"]), len(rest["entries"])] == [3, 2]
    assert "nextPageToken" not in rest
    listed(api, pageSize=-1, status=400)
    listed(api, pageToken="x", status=400)


def test_a_filter_lets_through_what_passes_all_of_its_comparisons(
    api: Client, clock: VirtualClock
) -> None:
    name = 'labels."compute.googleapis.com/resource_name"'
    assert texts(api, f'{name}="vm" AND textPayload:ONE') == ["one"]
    assert texts(api, f'({name}="other") resource.labels.zone=us-central1-c') == ["other"]
    assert texts(api, f'logName="{LOG}" AND resource.type="gce_instance" AND textPayload:"o"')
    later = rfc3339(clock.now() + 9)
    assert texts(api, f'textPayload:"] " AND timestamp>="{later}"') == ["other", "two"]
    assert texts(api, f"textPayload:o AND timestamp<{later}")[1:] == ["one"]
    assert texts(api, "labels.unknown=vm") == []


REFUSED = (
    ("textPayload:a OR textPayload:b", 501),
    ("NOT textPayload:a", 501),
    ('textPayload=~"a.*"', 501),
    ("severity>=ERROR", 501),
    ("textPayload>a", 501),
    ('log_id("a/b")', 501),
    ("training", 501),
    ("textPayload:a AND", 501),
    ("(textPayload:a", 501),
    ('textPayload:"a', 501),
    ("timestamp>yesterday", 400),
    ("timestamp>2026-11-22T00:00:00", 400),
)


def test_unsupported_filters_are_refused(api: Client) -> None:
    for filter, status in REFUSED:
        listed(api, filter, status=status)


def test_entries_are_gone_after_thirty_days(api: Client, clock: VirtualClock) -> None:
    clock.advance(30 * 86400 + 30)
    api = api.as_member(DEVELOPER)
    assert texts(api) == ["SeaBIOS (version 1)", "two"]
    clock.advance(60)
    assert texts(api) == []


def test_the_caller_needs_the_permission_on_the_project_that_the_body_names(
    api: Client, cloud: Cloud
) -> None:
    viewer = api.as_member(VIEWER)
    refused = viewer.post(LIST, {"resourceNames": [f"projects/{PROJECT}"]}, status=403)
    assert "logging.logEntries.list" in refused["error"]["message"]
    projects.ensure(cloud, "theirs", owner=VIEWER)
    assert viewer.post(LIST, {"resourceNames": ["projects/theirs"]}) == {}
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    projects.enable_services(cloud, PROJECT, ["cloudresourcemanager.googleapis.com"])
    policy = api.post(f"{url}:getIamPolicy")
    policy["bindings"].append({"role": "roles/logging.viewer", "members": [VIEWER]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})
    assert texts(viewer, "textPayload:one") == ["one"]
    api.as_member("").post(LIST, {}, status=401)


def test_the_project_may_be_named_by_its_number_and_its_api_must_be_enabled(
    api: Client, cloud: Cloud
) -> None:
    number = projects.number(PROJECT)
    assert len(api.post(LIST, {"resourceNames": [f"projects/{number}"]})["entries"]) == 5
    cloud.store.delete(
        projects.ENABLED_SERVICE, projects.service_key(PROJECT, "logging.googleapis.com")
    )
    refused = api.post(LIST, {"resourceNames": [f"projects/{number}"]}, status=403)
    assert "it is disabled" in refused["error"]["message"]


def test_other_parents_than_one_project_are_refused(api: Client) -> None:
    api.post(LIST, {}, status=400)
    api.post(LIST, {"resourceNames": ["organizations/1"]}, status=501)
    api.post(LIST, {"resourceNames": [f"projects/{PROJECT}", "projects/b"]}, status=501)

"""Entries that programs write, and the mails of policies on them."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.services.monitoring import MAIL
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
MONITORING = f"monitoring.googleapis.com/v3/projects/{PROJECT}"
WRITE, LIST = (f"logging.googleapis.com/v2/entries:{verb}" for verb in ("write", "list"))
LOG = f"projects/{PROJECT}/logs/dev-messages"
STRANGER = "user:stranger@example.com"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("pubsub.googleapis.com",)


def write(api: Client, text: str, log: str = LOG, **more: Any) -> None:
    payload = {"subject": text.partition("\n")[0], "text": text}
    entry = {"logName": log, "resource": {"type": "global"}, "jsonPayload": payload}
    api.post(WRITE, {"entries": [entry]}, **more)


def policy(channel: str, **more: Any) -> Json:
    extractors = {part: f"EXTRACT(jsonPayload.{part})" for part in ("subject", "text")}
    matched = {"filter": f'logName="{LOG}"', "labelExtractors": extractors}
    return {
        "displayName": "messages",
        "combiner": "OR",
        "conditions": [{"displayName": "a message", "conditionMatchedLog": matched}],
        "documentation": {
            "subject": "${log.extracted_label.subject}",
            "content": "It says: ${log.extracted_label.text}",
        },
        "alertStrategy": {"notificationRateLimit": {"period": "300s"}},
        "notificationChannels": [channel],
        **more,
    }


@pytest.fixture
def channel(api: Client) -> str:
    labels = {"email_address": "ada@example.com"}
    url = f"{MONITORING}/notificationChannels"
    return str(api.post(url, {"type": "email", "labels": labels})["name"])


@pytest.fixture
def made(api: Client, channel: str) -> Json:
    return api.post(f"{MONITORING}/alertPolicies", policy(channel))


def mails(cloud: Cloud) -> list[tuple[str, str, str]]:
    found = [mail for _, mail in cloud.store.items(MAIL)]
    return [(mail["to"], mail["subject"], mail["text"]) for mail in found]


def test_an_entry_is_mailed_with_what_is_taken_out_of_it(
    api: Client, cloud: Cloud, made: Json
) -> None:
    write(api, "j is failed\ngs://b")
    write(api, "another log", log=f"projects/{PROJECT}/logs/other")
    assert mails(cloud) == [("ada@example.com", "j is failed", "It says: j is failed\ngs://b")]


def test_two_messages_at_once_are_two_mails_and_one_twice_is_one(
    api: Client, cloud: Cloud, made: Json, clock: VirtualClock
) -> None:
    for text in ("a", "b", "a"):
        write(api, text)
    assert [subject for _, subject, _ in mails(cloud)] == ["a", "b"]
    clock.advance(301)
    write(api, "a")
    assert len(mails(cloud)) == 3


def test_a_policy_that_is_off_or_gone_mails_nothing(api: Client, cloud: Cloud, made: Json) -> None:
    url = f"monitoring.googleapis.com/v3/{made['name']}"
    assert api.patch(url, {"enabled": False}, updateMask="enabled")["enabled"] is False
    write(api, "a")
    api.delete(url)
    write(api, "b")
    assert mails(cloud) == []


def test_written_entries_are_listed(api: Client) -> None:
    write(api, "a")
    body = {"resourceNames": [f"projects/{PROJECT}"], "filter": f'logName="{LOG}"'}
    (entry,) = api.post(LIST, body)["entries"]
    assert entry["jsonPayload"] == {"subject": "a", "text": "a"}


def test_callers_without_permission_cannot_write_entries(api: Client) -> None:
    write(api.as_member(STRANGER), "a", status=403)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"alertStrategy": {}}, "notification_rate_limit"),
        ({"conditions": []}, "at least one condition"),
        ({"notificationChannels": [f"projects/{PROJECT}/notificationChannels/1"]}, "no channel"),
    ],
)
def test_a_policy_that_google_refuses_is_refused(
    api: Client, channel: str, more: Json, said: str
) -> None:
    refused = api.post(f"{MONITORING}/alertPolicies", policy(channel, **more), status=400)
    assert said in refused["error"]["message"]


def test_a_channel_that_a_policy_tells_is_deleted_by_force_alone(
    api: Client, made: Json, channel: str
) -> None:
    url = f"monitoring.googleapis.com/v3/{channel}"
    api.delete(url, status=400)
    api.delete(url, force="true")
    assert api.get(f"monitoring.googleapis.com/v3/{made['name']}")["notificationChannels"] == []


def test_there_are_no_time_series_and_a_wrong_question_is_refused(api: Client) -> None:
    url = f"{MONITORING}/timeSeries"
    asked: dict[str, Any] = {
        "filter": 'metric.type = "tpu.googleapis.com/accelerator/duty_cycle"',
        "interval.endTime": "2026-11-29T12:00:00Z",
    }
    assert api.get(url, **asked) == {}
    api.as_member(STRANGER).get(url, status=403, **asked)
    for wrong in ({"filter": 'resource.type = "a"'}, {"interval.endTime": ""}):
        api.get(url, status=400, **(asked | wrong))


def test_channels_and_policies_tell_when_they_were_made_and_changed(
    api: Client, clock: VirtualClock, channel: str, made: Json
) -> None:
    url = f"monitoring.googleapis.com/v3/{channel}"
    clock.advance(60)
    for one in (url, f"monitoring.googleapis.com/v3/{made['name']}"):
        api.patch(one, {"displayName": "renamed"}, updateMask="display_name")
    told = api.get(url)
    first, last = told["mutationRecords"][1], told["mutationRecords"][0]
    assert (told["creationRecord"], first["mutateTime"] < last["mutateTime"]) == (first, True)
    changed = api.get(f"monitoring.googleapis.com/v3/{made['name']}")
    assert changed["creationRecord"]["mutateTime"] < changed["mutationRecord"]["mutateTime"]
    for kind in ("notificationChannels", "alertPolicies"):
        assert api.get(f"{MONITORING}/{kind}")["totalSize"] == 1

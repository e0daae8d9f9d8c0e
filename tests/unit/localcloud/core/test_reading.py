"""A field of a request that nothing reads is refused, and the call has changed nothing."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from localcloud.core.body import reading, tracked
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Route
from localcloud.core.store import Work, effect
from localcloud.services.pubsub import API, TOPIC
from localcloud.testing import Client

_ONE = "pubsub.googleapis.com/v1/projects/tpu-stack-local/topics/one"
_KEY = "projects/tpu-stack-local/topics/one"
_BODY = {
    "kmsKeyName": "k",
    "labels": {"a": "b"},
    "messageStoragePolicy": {"enforceInTransit": True},
}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("pubsub.googleapis.com",)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What handles the creation of a topic: the last of the list."""
    handlers: list[object] = []
    key = ("v1", "projects.topics.create")
    route = API._routes[key]

    def handler(cloud: Cloud, call: Call) -> Json:
        handlers[-1](cloud, call.body)  # type: ignore[operator]
        cloud.store.put(TOPIC, _KEY, {"name": _KEY})
        return {"name": _KEY}

    fields = {name: getattr(route, name) for name in Route.__dataclass_fields__}
    monkeypatch.setitem(API._routes, key, Route(**{**fields, "handler": handler}))
    return handlers


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda body: None, "kmsKeyName, labels, messageStoragePolicy of"),
        (lambda body: (body["labels"], body.get("kmsKeyName")), "labels.a, messageStoragePolicy"),
        (lambda body: (dict(body["labels"]), body["kmsKeyName"]), "implement messageStoragePolicy"),
        (lambda body: [*body], "kmsKeyName, labels, messageStoragePolicy of"),
    ],
)
def test_unread_fields_are_501_and_change_nothing(
    api: Client, cloud: Cloud, handle: list[object], read: object, named: str
) -> None:
    handle.append(lambda _, body: read(body))  # type: ignore[operator]
    error = api.put(_ONE, _BODY, status=501)["error"]
    assert named in error["message"]
    assert "projects.topics.create" in error["message"]
    assert cloud.store.get(TOPIC, _KEY) is None


@pytest.mark.parametrize("copied", [json.dumps, copy.deepcopy, lambda body: {**body["x"]}])
def test_copying_the_whole_is_reading_it(copied: object) -> None:
    body = tracked({"x": {"a": 1, "b": [{"c": 2}]}})
    copied(body)  # type: ignore[operator]
    assert body["x"].seen == {"a", "b"}


@pytest.mark.parametrize(
    ("mask", "named"), [("*", "labels.a, schemaSettings"), ("labels", "labels.a"), ("name", "")]
)
def test_fields_outside_the_update_mask_are_ignored(mask: str, named: str) -> None:
    about = SimpleNamespace(api="pubsub", version="v1", request="Topic", id="patch")
    body = tracked({"labels": {"a": "b"}, "schemaSettings": {"schema": "s"}})
    call = SimpleNamespace(method=about, body=body, mask=lambda: [mask])
    refused = pytest.raises(ApiError, match=f"implement {named} of") if named else nullcontext()
    with refused, reading(call):  # type: ignore[arg-type]
        body.get("labels")


def test_fields_that_say_nothing_or_are_not_the_callers_may_be_sent(
    api: Client, handle: list[object]
) -> None:
    handle.append(lambda cloud, body: None)
    api.put(_ONE, {"kmsKeyName": "", "labels": {}, "satisfiesPzs": False, "state": "ACTIVE"})


def test_no_effect_comes_before_the_refusal(
    api: Client, cloud: Cloud, handle: list[object]
) -> None:
    done: list[str] = []
    effect("test.reading")(lambda cloud, **arguments: done.append("done"))
    work = Work("test.reading", {})
    handle.append(lambda cloud, body: cloud.operations.start("test/1", work))
    api.put(_ONE, _BODY, status=501)
    assert done == []
    assert cloud.operations.items("test/1") == []
    stored = Work("test.reading", {})
    handle.append(lambda cloud, body: cloud.operations.start("test/2", stored, {"sent": body}))
    api.put(_ONE, _BODY)
    assert done == ["done"]


def test_fields_outside_a_mask_in_the_body_are_ignored(api: Client) -> None:
    api.put(_ONE, {"labels": {"a": "b"}})
    topic = {
        "name": _KEY,
        "labels": {"a": "c"},
        "messageStoragePolicy": {"allowedPersistenceRegions": ["us-central1"]},
    }
    changed = api.patch(_ONE, {"topic": topic, "updateMask": "labels"})
    assert changed == {"name": _KEY, "labels": {"a": "c"}}

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.services.storage import buckets
from tests.unit.localcloud.storage.conftest import Bucket

DAY = 86400.0


def rule(action: dict[str, str] | str, **condition: Any) -> dict[str, Any]:
    action = {"type": action} if isinstance(action, str) else action
    return {"action": action, "condition": condition}


def set_rules(bucket: Bucket, *rules: dict[str, Any], status: int = 200) -> str:
    return str(bucket.api.patch(bucket.url, {"lifecycle": {"rule": list(rules)}}, status=status))


def test_objects_are_deleted_when_they_are_old_enough(bucket: Bucket, clock: VirtualClock) -> None:
    set_rules(bucket, rule("Delete", age=7))
    bucket.put("old")
    clock.advance(3 * DAY)
    bucket.put("new")
    clock.advance(3.9 * DAY)
    assert bucket.names() == ["new", "old"]
    clock.advance(0.2 * DAY)
    assert bucket.names() == ["new"]


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ({"matchesPrefix": ["tmp/"]}, ["keep.log", "keep.txt"]),
        ({"matchesSuffix": [".log", ".tmp"]}, ["keep.txt", "tmp/a.txt"]),
        (
            {"matchesPrefix": ["tmp/"], "matchesSuffix": [".log"]},
            ["keep.log", "keep.txt", "tmp/a.txt"],
        ),
        ({"isLive": False}, ["keep.log", "keep.txt", "tmp/a.log", "tmp/a.txt"]),
        ({"isLive": True}, []),
    ],
)
def test_a_rule_deletes_what_meets_all_its_conditions(
    bucket: Bucket, cloud: Cloud, condition: dict[str, Any], left: list[str]
) -> None:
    for name in ("keep.log", "keep.txt", "tmp/a.log", "tmp/a.txt"):
        bucket.put(name)
    set_rules(bucket, rule("Delete", **condition))
    buckets.apply_rules(cloud)
    assert bucket.names() == left


def test_only_the_newest_versions_are_kept(bucket: Bucket, cloud: Cloud) -> None:
    bucket.api.patch(bucket.url, {"versioning": {"enabled": True}})
    set_rules(bucket, rule("Delete", numNewerVersions=2))
    generations = [bucket.put("x", str(n).encode())["generation"] for n in range(5)]
    assert buckets.apply_rules(cloud) == 3
    page = bucket.api.get(f"{bucket.url}/o", versions="true")
    assert [item["generation"] for item in page["items"]] == generations[-2:]
    assert bucket.read("x") == b"4"


def test_a_live_object_of_a_versioned_bucket_becomes_noncurrent_first(
    bucket: Bucket, clock: VirtualClock
) -> None:
    bucket.api.patch(bucket.url, {"versioning": {"enabled": True}})
    set_rules(bucket, rule("Delete", age=1, isLive=True), rule("Delete", daysSinceNoncurrentTime=2))
    bucket.put("x")
    clock.advance(1.1 * DAY)
    assert bucket.names() == []
    assert bucket.names(versions="true") == ["x"]
    clock.advance(2.1 * DAY)
    assert bucket.names(versions="true") == []


def test_objects_move_to_another_storage_class(bucket: Bucket, clock: VirtualClock) -> None:
    action = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
    set_rules(bucket, rule(action, age=1))
    made = bucket.put("x")
    clock.advance(1.1 * DAY)
    moved = bucket.api.get(f"{bucket.url}/o/x")
    assert moved["storageClass"] == "NEARLINE"
    assert moved["generation"] == made["generation"]
    assert moved["metageneration"] == "2"


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (rule("Burn", age=1), "'Burn'"),
        (rule("Delete"), "no condition"),
        (rule("Delete", age=-1), "must not be negative"),
        (rule({"type": "SetStorageClass"}, age=1), "storage class 'None'"),
        (rule({"type": "SetStorageClass", "storageClass": "ICE"}, age=1), "'ICE'"),
        (rule({"type": "Delete", "storageClass": "NEARLINE"}, age=1), "takes no storageClass"),
        (rule("Delete", weight=3), "weight"),
    ],
)
def test_a_wrong_rule_is_refused(bucket: Bucket, wrong: dict[str, Any], word: str) -> None:
    assert word in set_rules(bucket, wrong, status=400)
    assert "lifecycle" not in bucket.api.get(bucket.url)


def test_a_condition_that_no_stack_sets_is_refused_unless_it_is_empty(bucket: Bucket) -> None:
    refused = set_rules(bucket, rule("Delete", createdBefore="2026-01-31"), status=501)
    assert "createdBefore" in refused
    set_rules(bucket, rule("Delete", age=1, customTimeBefore="", daysSinceCustomTime=0))


def test_no_rules_are_the_same_as_no_lifecycle(bucket: Bucket) -> None:
    set_rules(bucket, rule("Delete", age=1))
    set_rules(bucket)
    assert "lifecycle" not in bucket.api.get(bucket.url)

"""The bucket of Pulumi's state, in a project that is really there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client, session
from tpustack.cloud.google import Google
from tpustack.commands import init
from tpustack.errors import TpustackError

NAME = "my-project-pulumi-state"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock())
    made.start()
    yield made
    made.stop()


def ensure(cloud: LocalCloud, *member: str) -> bool:
    google = Google(session(cloud, *member))
    return init.ensure_state_bucket(google, NAME, DEFAULT_PROJECT, "us-central1")


def test_the_state_bucket_is_created_once_private_and_versioned(cloud: LocalCloud) -> None:
    assert [ensure(cloud), ensure(cloud)] == [True, False]
    bucket = Client(cloud).get(f"storage.googleapis.com/storage/v1/b/{NAME}")
    assert bucket["location"] == "US-CENTRAL1"
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    assert bucket["versioning"] == {"enabled": True}
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == str(30 * 24 * 3600)
    (rule,) = bucket["lifecycle"]["rule"]
    assert rule["action"] == {"type": "Delete"}
    # Old versions alone: deleting a current one would lose a stack.
    assert rule["condition"] == {"numNewerVersions": 100, "isLive": False}


def test_two_engineers_may_create_the_state_bucket_at_the_same_moment(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = init._is_there
    answers = iter([lambda *_: False, found])
    monkeypatch.setattr(init, "_is_there", lambda *asked: next(answers)(*asked))
    Client(cloud).post(
        "storage.googleapis.com/storage/v1/b", {"name": NAME}, project=DEFAULT_PROJECT
    )
    assert ensure(cloud) is False


def test_a_bucket_name_in_use_is_refused_with_googles_reason(cloud: LocalCloud) -> None:
    ensure(cloud)
    with pytest.raises(TpustackError, match="answers 403: stranger@"):
        ensure(cloud, "user:stranger@example.com")

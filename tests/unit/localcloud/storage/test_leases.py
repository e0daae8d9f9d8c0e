"""The training's lease on a model directory, by the JSON API's preconditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tpu_core.bucket
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Fault
from tests.unit.localcloud.storage.conftest import Bucket
from tpu_core.google import GoogleError
from tpu_core.lease import BucketLease, LeaseError
from tpu_core.process import Process
from tpustack.cloud.google import Google

PATH = "jobs/one two/lease.json"


@pytest.fixture
def there(bucket: Bucket) -> tpu_core.bucket.Bucket:
    return tpu_core.bucket.Bucket("test-bucket", Google(bucket.api.session).exchange)


@pytest.fixture
def lease(there: tpu_core.bucket.Bucket, clock: VirtualClock) -> Callable[[str], BucketLease]:
    def lease(name: str) -> BucketLease:
        me = Process(name, f"vm-{name}", 12, "", "", "2026-11-22T12:00:00Z")
        folder = "gs://test-bucket/jobs/one two"
        return BucketLease(folder, there, me, clock.now, clock.advance)

    return lease


def test_an_object_is_only_changed_as_it_was_read(there: tpu_core.bucket.Bucket) -> None:
    assert there.look(PATH) is None
    first = there.write(PATH, b"first", generation=0)
    with pytest.raises(tpu_core.bucket.Conflict):
        there.write(PATH, b"second", generation=0)
    there.touch(PATH, first, {"renewals": 1})
    with pytest.raises(tpu_core.bucket.Conflict):
        there.write(PATH, b"second", generation=first, metageneration=1)
    found = there.look(PATH)
    assert found
    assert (found.generation, found.metageneration) == (first, 2)
    second = there.write(PATH, b"second", generation=first, metageneration=2)
    with pytest.raises(tpu_core.bucket.Conflict):
        there.touch(PATH, first, {})
    with pytest.raises(tpu_core.bucket.Conflict):
        there.delete(PATH, first)
    there.delete(PATH, second)
    assert there.look(PATH) is None
    with pytest.raises(GoogleError):
        there.touch(PATH, second, {})


def test_the_bucket_says_how_old_a_renewal_is(
    there: tpu_core.bucket.Bucket, clock: VirtualClock
) -> None:
    generation = there.write(PATH, b"")
    clock.advance(45.0)
    found = there.look(PATH)
    assert found
    assert found.age == pytest.approx(45.0, abs=1.0)
    there.touch(PATH, generation, {})
    found = there.look(PATH)
    assert found
    assert found.age <= 1.0


def test_the_lease_goes_from_a_dead_holder_to_the_next(
    lease: Callable[[str], BucketLease], clock: VirtualClock
) -> None:
    dead, living = lease("a"), lease("b")
    dead.acquire()
    clock.advance(61.0)
    begun = clock.now()
    living.acquire()
    assert clock.now() == begun
    with pytest.raises(LeaseError, match=r"process 12 on vm-b .* has taken it over"):
        dead.confirm()
    living.confirm()
    living.release()
    lease("c").acquire()


def test_a_bucket_that_fails_for_a_while_is_asked_again(
    lease: Callable[[str], BucketLease], cloud: Cloud
) -> None:
    cloud.faults.add(Fault("storage.objects.*", status=503, count=3))
    lease("a").acquire()


def test_a_missing_role_is_named(bucket: Bucket) -> None:
    other = bucket.api.as_member("user:other@example.com")
    there = tpu_core.bucket.Bucket("test-bucket", Google(other.session).exchange)
    with pytest.raises(GoogleError, match=r"does not have storage\.objects\.create access"):
        there.write(PATH, b"text")

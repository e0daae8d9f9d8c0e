"""The training's lease on a model directory, by the JSON API's preconditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.core.faults import Fault
from tests.unit.localcloud.storage.conftest import Bucket
from tpu_training.checkpoints.lease import BucketLease, Holder
from tpu_training.cluster.google import BucketObject, NotNow, Refused, Taken
from tpu_training.errors import LeaseError

PATH = "gs://test-bucket/jobs/one two/lease.json"


class Time:
    """The local cloud's virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def now(self) -> float:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def there(bucket: Bucket, owner: str) -> BucketObject:
    return BucketObject(PATH, lambda: owner, bucket.api.session)


@pytest.fixture
def lease(there: BucketObject, clock: VirtualClock) -> Callable[[str], BucketLease]:
    def lease(name: str) -> BucketLease:
        holder = Holder(name, f"vm-{name}", 12, "", "", "2026-11-22T12:00:00Z")
        return BucketLease("gs://test-bucket/jobs/one two", there, holder, Time(clock))

    return lease


def test_an_object_is_only_changed_as_it_was_read(there: BucketObject) -> None:
    assert there.read() is None
    first = there.put("first")
    with pytest.raises(Taken):
        there.put("second")
    there.renew(first, 1)
    with pytest.raises(Taken):
        there.put("second", first, metageneration=1)
    found = there.read()
    assert found
    assert (found.generation, found.metageneration, found.text) == (first, 2, "first")
    second = there.put("second", first, found.metageneration)
    with pytest.raises(Taken):
        there.renew(first, 2)
    with pytest.raises(Taken):
        there.delete(first)
    there.delete(second)
    assert there.read() is None
    with pytest.raises(Taken):
        there.renew(second, 1)


def test_the_bucket_says_how_old_a_renewal_is(there: BucketObject, clock: VirtualClock) -> None:
    generation = there.put("text")
    clock.advance(45.0)
    found = there.read()
    assert found
    assert found.age == pytest.approx(45.0, abs=1.0)
    there.renew(generation, 1)
    found = there.read()
    assert found
    assert found.age < 1.0


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


def test_a_missing_role_is_named(there: BucketObject, bucket: Bucket, cloud: Cloud) -> None:
    there._tokens = lambda: "no token of this cloud"
    with pytest.raises(NotNow, match="401"):
        there.read()
    nobody = bucket.api.as_member("user:nobody@example.com")
    token = str(nobody.session.headers["Authorization"]).removeprefix("Bearer ")
    with pytest.raises(Refused, match=r"does not have storage\.objects\.create access"):
        BucketObject(PATH, lambda: token, nobody.session).put("text")

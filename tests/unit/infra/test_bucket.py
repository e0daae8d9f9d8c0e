"""The bucket's key, and what Google deletes in it by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_infra.checks import find_problems
from tpu_infra.settings.parse import parse

from .conftest import ANSWERS, Run, config, context_of

NOWHERE = Path("nowhere")
GIVEN = "projects/security/locations/us-central1/keyRings/ring/cryptoKeys/key"
AGENT = "gcp:storage/getProjectServiceAccount:getProjectServiceAccount"


def test_without_settings_google_has_the_key_and_deletes_nothing_by_itself(run: Run) -> None:
    engine, _ = run(config())
    bucket = engine.one("Bucket")
    assert {"encryption", "lifecycleRules", "softDeletePolicy"}.isdisjoint(bucket)
    assert engine.of("KeyRing") == engine.of("CryptoKey") == []


def test_the_stacks_own_key_is_in_the_buckets_region_and_storage_may_use_it(run: Run) -> None:
    engine, _ = run(config(bucket={"encryption": {}}))
    assert engine.one("KeyRing")["location"] == "us-central1"
    assert engine.one("CryptoKey")["rotationPeriod"] == f"{90 * 86400}s"
    grant = engine.one("CryptoKeyIAMMember")
    assert grant["member"] == f"serviceAccount:{ANSWERS[AGENT]['emailAddress']}"
    assert engine.one("Bucket")["encryption"] == {"defaultKmsKeyName": "bucket-key-id"}
    assert "cloudkms.googleapis.com" in {api.inputs["service"] for api in engine.of("Service")}


def test_the_name_of_the_key_ring_is_google_wide_unique_since_google_never_deletes_one(
    run: Run,
) -> None:
    engine, _ = run(config(bucket={"encryption": {}}))
    assert "name" not in engine.one("KeyRing")


def test_a_given_key_is_used_and_none_is_made(run: Run) -> None:
    engine, _ = run(config(bucket={"encryption": {"key": GIVEN}}))
    assert engine.of("KeyRing") == engine.of("CryptoKey") == []
    assert engine.one("CryptoKeyIAMMember")["cryptoKeyId"] == GIVEN
    assert engine.one("Bucket")["encryption"] == {"defaultKmsKeyName": GIVEN}


def test_rules_become_googles(run: Run) -> None:
    rules = [
        {"noncurrentDays": 30, "newerVersions": 2},
        {"action": "coldline", "prefix": "jobs/", "ageDays": 60},
    ]
    settings = {"versioning": True, "softDeleteDays": 14, "lifecycle": rules}
    bucket = run(config(bucket=settings))[0].one("Bucket")
    assert bucket["lifecycleRules"] == [
        {
            "action": {"type": "Delete"},
            "condition": {
                "daysSinceNoncurrentTime": 30,
                "numNewerVersions": 2,
                "withState": "ARCHIVED",
            },
        },
        {
            "action": {"type": "SetStorageClass", "storageClass": "COLDLINE"},
            "condition": {"age": 60, "matchesPrefixes": ["jobs/"], "withState": "ANY"},
        },
    ]
    assert bucket["softDeletePolicy"] == {"retentionDurationSeconds": 14 * 86400}


@pytest.mark.parametrize(
    "prefix",
    ["", "j", "jobs", "jobs/", "jobs/a", "jobs/a/", "jobs/a/ch", "jobs/a/checkpoints/x/y",
     "jobs/a/finished", "d", "data/", "data/mnist/", "wheels/0123"],
)  # fmt: skip
def test_no_rule_deletes_by_age_alone_what_a_job_needs_to_resume(prefix: str) -> None:
    assert refused(prefix)


@pytest.mark.parametrize(
    "prefix", ["jobs/a/tensorboard/", "jobs/a/t", "logs/", "dataset", "jobs2/", "job-logs/a/"]
)
def test_logs_may_be_deleted_by_age(prefix: str) -> None:
    assert not refused(prefix)


def refused(prefix: str) -> bool:
    rule = {"ageDays": 30, **({"prefix": prefix} if prefix else {})}
    parsed = parse(config(bucket={"lifecycle": [rule]}), "test")
    # Nothing is there to upload in this test, which has problems of its own.
    problems = find_problems(parsed, context_of(parsed, NOWHERE))
    return any(problem.setting.startswith("bucket.lifecycle") for problem in problems)

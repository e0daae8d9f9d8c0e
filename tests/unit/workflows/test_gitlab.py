"""GitLab's pipeline as its hostile merge requests find it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tpustack.project import root

FILE = root() / "ci" / "gitlab.yml"
PIPELINE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
KEYWORDS = {"stages", "default", "variables"}
DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def merged(job: dict[str, Any]) -> dict[str, Any]:
    """A job with what it extends; a hash is merged, anything else replaced."""
    base = merged(PIPELINE[job["extends"]]) if "extends" in job else {}
    made = {**base, **job}
    for key in base.keys() & job.keys():
        if isinstance(base[key], dict):
            made[key] = {**base[key], **job[key]}
    return made


JOBS = {
    name: merged(job)
    for name, job in PIPELINE.items()
    if name not in KEYWORDS and not name.startswith(".")
}


def is_of_requests(job: dict[str, Any]) -> bool:
    return any("merge_request_event" in rule["if"] for rule in job["rules"])


def is_of_the_protected_branch(rule: str) -> bool:
    # Schedules are made on the default branch (the file's head), by who may push there.
    return "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH" in rule or '"schedule"' in rule


def test_images_are_pinned_by_digest() -> None:
    images = [
        PIPELINE["default"]["image"],
        *(job["image"] for job in JOBS.values() if "image" in job),
    ]
    assert [image for image in images if not DIGEST.fullmatch(image)] == []


def test_what_a_request_keeps_is_read_by_no_protected_branch() -> None:
    caches = [job["cache"] for job in JOBS.values() if "cache" in job]
    assert caches
    assert all("$CI_COMMIT_REF_PROTECTED" in cache["key"]["prefix"] for cache in caches)


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if not is_of_requests(job)])
def test_all_other_jobs_run_on_the_protected_branch_alone(name: str) -> None:
    assert all(is_of_the_protected_branch(rule["if"]) for rule in JOBS[name]["rules"])


def test_no_job_of_a_request_writes_to_it_or_to_issues() -> None:
    """Its own version of this file decides what such a job does with the tokens that it sees."""
    writing = [
        name
        for name, job in JOBS.items()
        if re.search(r"ci (comment|guard|issue|plans)", " ".join(job["script"]))
    ]
    assert {name.partition(" ")[0] for name in writing} == {"comment", "guard", "issue", "reviewed"}
    assert not any(is_of_requests(JOBS[name]) for name in writing)


def test_no_job_has_both_googles_token_and_the_one_that_comments() -> None:
    for name, job in JOBS.items():
        writes = re.search(r"ci (comment|guard|issue|plans)", " ".join(job["script"]))
        assert not (writes and "id_tokens" in job), name


@pytest.mark.parametrize(
    "name", [name for name in JOBS if name.partition(" ")[0] in ("plan", "destroy")]
)
def test_nothing_is_planned_or_destroyed_before_it_is_known_who_is_asked(name: str) -> None:
    """However the pipeline was started: by a merge or by hand."""
    assert {"job": "guard", "artifacts": False} in JOBS[name]["needs"]
    started = {rule["if"].partition(" && ")[0] for rule in JOBS[name]["rules"]}
    assert started <= {rule["if"].partition(" && ")[0] for rule in JOBS["guard"]["rules"]}

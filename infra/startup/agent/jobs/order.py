"""Which job is next, from the summaries that a list of the queue tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .record import ENDED, QUEUED, SUCCEEDED

Summaries = Mapping[str, Mapping[str, Any]]
"""What is known of each job, by name."""


def waiting(jobs: Summaries) -> list[str]:
    """Return the jobs that may start, the next one first.

    Those of a higher priority come first, then those that were submitted earlier. Vertex AI starts
    its own.
    """
    ours = {name: job for name, job in jobs.items() if not job.get("vertex")}
    ready = [name for name, job in ours.items() if job.get("state") == QUEUED]
    ready = [name for name in ready if all(_succeeded(jobs, one) for one in _after(jobs[name]))]
    return sorted(ready, key=lambda name: _rank(name, jobs[name]))


def in_vain(jobs: Summaries) -> Iterator[tuple[str, str]]:
    """Yield the jobs that wait for one that will never succeed, and why it won't."""
    for name, job in jobs.items():
        if job.get("state") != QUEUED:
            continue
        for one in _after(job):
            state = jobs[one].get("state") if one in jobs else "gone"
            if state in (*ENDED, "gone") and state != SUCCEEDED:
                yield name, f"it comes after {one}, which is {state}"
                break


def _after(job: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in job.get("after", ())]


def _succeeded(jobs: Summaries, name: str) -> bool:
    return name in jobs and jobs[name].get("state") == SUCCEEDED


def _rank(name: str, job: Mapping[str, Any]) -> tuple[float, float, str]:
    return -float(job.get("priority", 0)), float(job.get("submitted", 0.0)), name

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

    def rank(name: str) -> tuple[float, float, str]:
        return -jobs[name]["priority"], jobs[name]["submitted"], name

    ours = (name for name, job in jobs.items() if job["state"] == QUEUED and not job["vertex"])
    return sorted((name for name in ours if all(_succeeded(jobs, name))), key=rank)


def in_vain(jobs: Summaries) -> Iterator[tuple[str, str]]:
    """Yield the jobs that wait for one that will never succeed, and why it won't."""
    for name, job in jobs.items():
        if job["state"] != QUEUED:
            continue
        for one in job["after"]:
            state = jobs[one]["state"] if one in jobs else "gone"
            if state in (*ENDED, "gone") and state != SUCCEEDED:
                yield name, f"it comes after {one}, which is {state}"
                break


def _succeeded(jobs: Summaries, name: str) -> Iterator[bool]:
    return (one in jobs and jobs[one]["state"] == SUCCEEDED for one in jobs[name]["after"])

"""What Vertex AI knows of a job beyond its record: that it never ran, or was killed.

A record says where to look, and others may write it. So a custom job counts only if its own ID and
output folder are those of this job in this bucket.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from infra.names import JOB_ID_LABEL
from tpu_agent.jobs.queue import FAILED, QUEUED, STOPPED, SUCCEEDED, TIMED_OUT, Job, Queue
from tpu_core import paths
from tpustack.jobs.place import google
from tpustack.jobs.vertex.api import CustomJobs, why_failed

_ENDED = {
    "JOB_STATE_SUCCEEDED": SUCCEEDED,
    "JOB_STATE_FAILED": FAILED,
    "JOB_STATE_CANCELLED": STOPPED,
    "JOB_STATE_EXPIRED": TIMED_OUT,
}
# A job is handed over seconds after it was submitted.
_HANDED_OVER = 600.0
_NEVER = "the command that submitted it ended before Vertex AI had it"


def refreshed(queue: Queue, job: Job, patience: float = _HANDED_OVER) -> Job:
    """Return a job with what Vertex AI tells of it, if its container could tell nothing.

    Where the answer to its submission was lost, it gets its name there; where Vertex AI does not
    have it `patience` seconds after that, it ends.

    Raises:
        StoreError: the bucket refuses.
        TpustackError: Vertex AI refuses, or its record names no place there.
    """
    if job.is_over or not job.spec.vertex:
        return job
    found = custom_jobs(queue, job)
    there = found[0] if found else {}
    state = _ENDED.get(str(there.get("state")))
    is_late = found == [] and time.time() > job.submitted + patience

    def told(now: Job) -> Job:
        if now.is_over:
            return now
        named = dataclasses.replace(now, custom_job=now.custom_job or str(there.get("name", "")))
        if state is not None:
            return named.over(state, time.time(), _reason(there, job))
        if is_late and now.state == QUEUED and not now.custom_job:
            return named.over(FAILED, time.time(), _NEVER)
        return named

    return queue.change(job.name, told) or job


def custom_jobs(queue: Queue, job: Job) -> list[dict[str, Any]] | None:
    """Return what Vertex AI runs as this very job; None if the caller may not look.

    Raises:
        TpustackError: Vertex AI refuses, or the job's record names no place there.
    """
    found = _jobs(job).called(job.name)
    folder = f"gs://{queue.store.bucket}/{paths.folder(job.name)}"
    return found and [
        one
        for one in found
        if one.get("labels", {}).get(JOB_ID_LABEL) == job.id
        and one["jobSpec"].get("baseOutputDirectory") == {"outputUriPrefix": folder}
    ]


def stop(queue: Queue, job: Job) -> None:
    """Cancel a job on Vertex AI that has not begun, or that was told to stop before.

    A container that runs reads in the job's record that it is to end, and keeps what it has.

    Raises:
        TpustackError: Vertex AI refuses.
    """
    if job.spec.vertex and not job.is_over and (job.state == QUEUED or job.stop):
        for one in custom_jobs(queue, job) or ():
            _jobs(job).cancel(one)


def _jobs(job: Job) -> CustomJobs:
    where = job.spec.vertex
    return CustomJobs(google(), where.get("project", ""), where.get("region", ""))


def _reason(there: dict[str, Any], job: Job) -> str:
    if there.get("state") == "JOB_STATE_CANCELLED":
        return "it was cancelled on Vertex AI"
    if error := there.get("error"):
        return f"Vertex AI: {why_failed(error, job.spec.vertex['region'])}"
    return ""

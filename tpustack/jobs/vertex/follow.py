"""What Vertex AI knows of a job beyond its record: that it never ran, or was killed."""

from __future__ import annotations

import time
from typing import Any

from infra.startup.agent.jobs.queue import Queue
from infra.startup.agent.jobs.record import FAILED, QUEUED, STOPPED, SUCCEEDED, TIMED_OUT, Job
from tpustack.jobs.place import google
from tpustack.jobs.vertex.api import CustomJobs, why_failed

_ENDED = {
    "JOB_STATE_SUCCEEDED": SUCCEEDED,
    "JOB_STATE_FAILED": FAILED,
    "JOB_STATE_CANCELLED": STOPPED,
    "JOB_STATE_EXPIRED": TIMED_OUT,
}


def refreshed(queue: Queue, job: Job) -> Job:
    """Return a job with the end that Vertex AI tells of, if its container could tell none.

    Raises:
        StoreError: the bucket refuses.
    """
    if job.is_over or not job.custom_job:
        return job
    there = _jobs(job).get(job.custom_job)
    state = _ENDED.get(str((there or {}).get("state")))
    if there is None or state is None:
        return job
    reason = _reason(there, job)

    def end(found: Job) -> Job | None:
        return None if found.is_over else found.over(state, time.time(), reason)

    return queue.change(job.name, end) or queue.read(job.name) or job


def stop(job: Job) -> None:
    """Cancel a job on Vertex AI that has not begun, or that was told to stop before.

    A container that runs reads in the job's record that it is to end, and keeps what it has.

    Raises:
        TpustackError: Vertex AI refuses.
    """
    if job.custom_job and not job.is_over and (job.state == QUEUED or job.stop):
        _jobs(job).cancel(job.custom_job)


def _jobs(job: Job) -> CustomJobs:
    where = job.spec.vertex
    return CustomJobs(google(), where["project"], where["region"])


def _reason(there: dict[str, Any], job: Job) -> str:
    if there["state"] == "JOB_STATE_CANCELLED":
        return "it was cancelled on Vertex AI"
    if error := there.get("error"):
        return f"Vertex AI: {why_failed(error, job.spec.vertex['region'])}"
    return ""

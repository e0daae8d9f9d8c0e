"""Jobs as the page shows them, and what it can do with one."""

from __future__ import annotations

from typing import Any

from infra.startup.agent.jobs.queue import Queue
from tpustack.jobs import artifacts, table, waiting
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.stop import stop as stop_job
from tpustack.jobs.submit import again
from tpustack.jobs.vertex.submit import hand_over

Json = dict[str, Any]


def listed(queue: Queue) -> list[Json]:
    """Return all jobs: those that run, those that wait in order, others. Raises StoreError."""
    return table.rows(queue.summaries())


def shown(queue: Queue, name: str) -> Json:
    """Return all that is known of a job, but for the values in its environment.

    Raises:
        UsageError: there is no such job.
        StoreError: the bucket refuses.
    """
    job = waiting.read(queue, name)
    document = table.document(job, queue.store.bucket)
    # People put tokens there; a page that is shown around must not have them.
    document["spec"]["env"] = sorted(job.spec.env)
    found = [vars(one) for one in artifacts.of_job(queue, name)]
    return {**document, "artifacts": found, "waiting": None if job.is_over else why_waiting(queue)}


def stop(queue: Queue, name: str) -> Json:
    """End a job. Raises as `shown` does."""
    job = stop_job(queue, name)
    return {"name": name, "state": "stopping" if not job.is_over else job.state}


def resubmit(queue: Queue, name: str) -> Json:
    """Run a job once more. Raises as `shown` does."""
    new = hand_over(queue, again(queue, waiting.read(queue, name), None))
    return {"name": new.name, "state": new.state}

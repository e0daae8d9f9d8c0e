"""Jobs as the page shows them, and what it can do with one."""

from __future__ import annotations

from typing import Any

from tpu_agent.jobs.queue import Queue
from tpustack.errors import UsageError
from tpustack.jobs import artifacts, table, waiting
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.stop import stop as stop_job
from tpustack.jobs.submit import again
from tpustack.jobs.vertex.place import place_again
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


def resubmit(queue: Queue, name: str, stack: str | None) -> Json:
    """Run a job once more; what Vertex AI runs needs its stack. Raises as `shown` does."""
    old = waiting.read(queue, name)
    if old.spec.vertex and stack is None:
        raise UsageError("Vertex AI runs it: open the dashboard with its stack, not its bucket")
    place = place_again(stack, None, old.spec)
    new = hand_over(queue, again(queue, old, place, None), place)
    return {"name": new.name, "state": new.state}
